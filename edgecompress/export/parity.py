"""Whether an exported file computes what the network computes, on the same images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from edgecompress.core.results import ParityResult
from edgecompress.errors import ExportError
from edgecompress.export.contract import Format, check_exportable, check_images

_BATCH = 32


@dataclass(frozen=True)
class Limits:
    """How far a file's outputs may be from the network's; None: not judged."""

    rtol: float | None = None
    """Largest difference over the largest magnitude of any output: rounding errors follow the scale
    of the network, so logits of 30 and of 0.001 are held to the same digits."""
    atol: float | None = None
    """Largest difference."""
    agreement: float | None = None
    """Least share of images with the same arg max, 0 to 1."""


LIMITS = {
    "fp32": Limits(rtol=1e-4),
    # float16 has 11 bits, and rounding errors of many layers add up; the arg max must survive them
    "fp16": Limits(rtol=5e-2, agreement=0.95),
    # int8 differs by design: what counts is that the answers stay the same
    "int8": Limits(agreement=0.85),
}
"""By precision, where the user gives none. Sums of float32 in another order stay some 50 times below
the first in all networks of the zoo."""


@torch.inference_mode()
def outputs(model: nn.Module, images: Tensor) -> Tensor:
    """Returns what a network computes for images (N, C, H, W).

    Raises:
        ExportError: the network is in training mode or not float32, or there are no images.
    """
    check_exportable(model)
    check_images(images)
    return torch.cat([model(batch) for batch in torch.split(images, _BATCH)])


def check_parity(
    format: Format, file: Path, expected: Tensor, images: Tensor, *, limits: Limits
) -> ParityResult:
    """Runs a file on images (N, C, H, W) and compares with the outputs `expected` of its network.

    Raises:
        ExportError: they differ by more than the limits, or an output is not finite, or the file
            does not run.
        MissingPackage: the runtime is not installed.
    """
    found = format.run(file, images)
    if found.shape != expected.shape:
        raise ExportError(
            f"{file.name}: outputs have shape {tuple(found.shape)}, "
            f"the network's {tuple(expected.shape)}; the file was made from another network"
        )
    result = _compared(expected, found.to(expected.dtype), file, format.name)
    _judge(result, limits, file)
    return result


def _compared(expected: Tensor, found: Tensor, file: Path, name: str) -> ParityResult:
    difference, largest = float((found - expected).abs().max()), float(expected.abs().max())
    return ParityResult(
        file=str(file),
        format=name,
        images=len(expected),
        max_abs_diff=difference,
        max_rel_diff=difference / largest if largest > 0 else difference,
        top1_agreement=float((found.argmax(1) == expected.argmax(1)).double().mean()),
    )


def _judge(result: ParityResult, limits: Limits, file: Path) -> None:
    # written so that a difference or limit that is not a number fails too
    finite = result.max_abs_diff < float("inf")
    within_rtol = limits.rtol is None or result.max_rel_diff <= limits.rtol
    within_atol = limits.atol is None or result.max_abs_diff <= limits.atol
    if not (finite and within_rtol and within_atol):
        raise ExportError(
            f"{file.name}: outputs differ from the network's by {result.max_abs_diff:.1e}, that is "
            f"{result.max_rel_diff:.1e} of the largest; {_allowed(limits)} is allowed; the arg max agrees on "
            f"{result.top1_agreement:.1%} of {result.images} images; the conversion is not faithful, "
            "do not use this file"
        )
    if limits.agreement is not None and not result.top1_agreement >= limits.agreement:
        raise ExportError(
            f"{file.name}: its answers agree with the network's on only {result.top1_agreement:.1%} of "
            f"{result.images} images, {limits.agreement:.0%} is asked for; do not use this file, or "
            "lower --min-agreement"
        )


def _allowed(limits: Limits) -> str:
    parts = [] if limits.rtol is None else [f"{limits.rtol:.1e} of the largest"]
    parts += [] if limits.atol is None else [f"{limits.atol:.1e}"]
    return " and ".join(parts) or "any finite number"
