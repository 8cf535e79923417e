"""The parts `exact` and `speed` of `bench_pruning.py`: networks of torchvision with random weights."""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgecompress.core.measurement import DeviceBench
from edgecompress.core.results import ExportedFile
from edgecompress.core.types import Group
from edgecompress.errors import EdgeCompressError
from edgecompress.nets.narrowing import Kept, narrow_, zeroed
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.bench import bench
from edgecompress.pipeline.export import export
from edgecompress.pipeline.narrowed import find_narrowable
from edgecompress.pipeline.prune import prune

EXACT = {"vit_b_16": "dims", "swin_t": "dims", "resnet50": "widths", "mobilenet_v2": "widths"}
"""Networks, and what is taken away from them."""
IMAGES = 2
NETS = Path(__file__).with_name("export_nets.py")
SPEED = ("swin_t", "vit_b_16")
SPEED_SHARE = "40%"


def exact_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per network and precision: half the units zeroed, against half the units gone."""
    for name, what in EXACT.items():
        loaded = load_model(f"torchvision:{name}")
        _randomise_(loaded.module)
        found = find_narrowable(loaded, widths=what == "widths", dims=what == "dims", residual=True)
        for dtype in (torch.float32, torch.float64):
            dense = found.module.to(dtype)
            images = _noise(loaded.ref.input_shape).to(dtype)
            row = {"model": name, "what": what, "groups": len(found.groups), "precision": str(dtype)[6:]}
            yield row | _removed(dense, found.groups, images)


@torch.no_grad()
def _randomise_(network: nn.Module) -> None:
    """Gives every layer, norm and statistic a value of its own; scores of attention are of order one."""
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 100
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
    for module in network.modules():
        if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
            module.weight.add_(1.0)
        if isinstance(module, nn.BatchNorm2d):
            shape = module.get_buffer("running_mean").shape
            module.get_buffer("running_mean").copy_(torch.randn(shape, generator=generator) * 0.3)
            module.get_buffer("running_var").copy_(torch.rand(shape, generator=generator) + 0.5)


def _noise(shape: tuple[int, int, int]) -> Tensor:
    return torch.randn(IMAGES, *shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def _removed(dense: nn.Module, groups: Sequence[Group], images: Tensor) -> dict[str, Any]:
    kept = _half(groups)
    with zeroed(dense, groups, kept):
        expected = dense(images)
    smaller = copy.deepcopy(dense)
    narrow_(smaller, groups, kept)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    both = dense, smaller
    return {
        "error": _distance(smaller(images), expected),
        "effect": _distance(dense(images), expected),
        "params": [total_params(one) for one in both],
        "macs": [total_macs(profile(one.float(), shape)) for one in (copy.deepcopy(dense), smaller)],
    }


def _half(groups: Sequence[Group]) -> Kept:
    generator = torch.Generator().manual_seed(2)
    return {
        group.name: sorted(torch.randperm(group.width, generator=generator)[: -(-group.width // 2)].tolist())
        for group in groups
    }


def _distance(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, as a share of the largest output."""
    return float((found - expected).abs().max() / expected.abs().max())


# Speed


def speed_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per network and format: dense against pruned, measured in turns."""
    for name in options.networks:
        for kind in options.formats:
            try:
                found = _timed(name, kind, options.preset)
            except EdgeCompressError as error:
                found = {"error": str(error)}
            yield {"model": name, "format": kind} | found


def _timed(name: str, kind: str, preset: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as runs:
        made = prune(f"{NETS}:{name}", dims=SPEED_SHARE, runs_dir=Path(runs), name=name)
        files = export(made.run, formats=(kind,), images=IMAGES, runs_dir=Path(runs)).files
        found = bench([made.run], preset=preset, threads=1, runs_dir=Path(runs)).benches[0]
    return {
        "share": SPEED_SHARE,
        "macs": made.compressed.macs / made.dense.macs,
        "params": made.compressed.params / made.dense.params,
        **_parity(files),
        **_speed(found),
    }


def _parity(files: Sequence[ExportedFile]) -> dict[str, Any]:
    return {"parity": {file.file: file.parity.max_rel_diff for file in files}}


def _speed(found: DeviceBench) -> dict[str, Any]:
    (result,) = found.comparisons
    return {
        "ms": {one.file.name: one.summary.median_ms for one in found.measurements},
        "speedup": result.speedup,
        "interval": [result.interval.low, result.interval.high],
        "verdict": result.verdict,
        "valid": all(one.validity.valid for one in found.measurements),
        "reasons": sorted({reason for one in found.measurements for reason in one.validity.reasons}),
    }
