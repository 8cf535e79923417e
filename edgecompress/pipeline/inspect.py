"""`edgecompress inspect`: what a model costs, layer by layer."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import InspectResult
from edgecompress.core.types import ModelRef, Size
from edgecompress.methods.lowrank import METHOD
from edgecompress.nets.artefact import PLAN_FILE, load, read_plan
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import load_model
from edgecompress.search.sensitivity import layer_candidates


def inspect(
    model: str,
    *,
    weights: str | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    classes: int | None = None,
    progress: Progress = NO_PROGRESS,
) -> InspectResult:
    """Counts parameters, MACs and bytes of a model or of the compressed model in a run directory.

    Raises:
        EdgeCompressError: the model cannot be loaded.
    """
    if (Path(model) / PLAN_FILE).is_file():
        return _inspected(load(model), read_plan(Path(model)).model, ())
    loaded = load_model(model, weights=weights, classes=classes, input_size=input_size, channels=channels)
    return _inspected(loaded.module, loaded.ref, loaded.targets)


def _inspected(network: nn.Module, ref: ModelRef, targets: tuple[str, ...]) -> InspectResult:
    rows = profile(network, ref.input_shape)
    layers, unfit = find_layers(network, targets, ref.input_shape)
    reasons = ((layer.name, layer_candidates(layer, [METHOD], ())[1]) for layer in layers)
    params = total_params(network)
    return InspectResult(
        model=ref,
        params=params,
        macs=total_macs(rows),
        weight_bytes=sum(row.weight_bytes for row in rows),
        layers=rows,
        targets=targets,
        skipped=(*unfit, *((name, reason) for name, reason in reasons if reason is not None)),
    )
