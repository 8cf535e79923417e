"""Whether an exported file computes what the network computes, on the same images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from edgecompress.core.results import ParityResult
from edgecompress.errors import ExportError
from edgecompress.export.contract import Exporter, check_exportable

_BATCH = 32


def check_parity(
    exporter: Exporter, file: Path, model: nn.Module, images: Tensor, *, rtol: float
) -> ParityResult:
    """Runs a file and the network it came from on images (N, C, H, W) and compares their outputs.

    `rtol` limits the largest difference over the largest magnitude of any output: rounding errors
    follow the scale of the network, so logits of 30 and of 0.001 are held to the same digits.
    Agreement of the arg max is reported and not judged: two classes may be a rounding error apart.

    Raises:
        ExportError: they differ by more, or an output is not finite, or the file does not run.
        MissingPackage: the runtime is not installed.
    """
    check_exportable(model)
    if len(images) == 0:
        raise ExportError(f"{file.name}: no images to compare it on; give at least one")
    expected, found = _outputs(model, images), exporter.run(file, images)
    if found.shape != expected.shape:
        raise ExportError(
            f"{file.name}: outputs have shape {tuple(found.shape)}, "
            f"the network's {tuple(expected.shape)}; the file was made from another network"
        )
    result = _compared(expected, found, file, exporter.name)
    if not result.max_rel_diff <= rtol:  # also where it is not a number
        raise ExportError(_unfaithful(result, rtol, file))
    return result


@torch.inference_mode()
def _outputs(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(batch) for batch in torch.split(images, _BATCH)])


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


def _unfaithful(result: ParityResult, rtol: float, file: Path) -> str:
    return (
        f"{file.name}: outputs differ from the network's by {result.max_rel_diff:.1e} of the largest, more "
        f"than the {rtol:.1e} allowed for rounding; the arg max agrees on {result.top1_agreement:.1%} of "
        f"{result.images} images; the conversion is not faithful, do not use this file"
    )
