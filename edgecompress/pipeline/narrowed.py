"""Networks with fewer channels and dimensions: what could go, and the finished network without it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from edgecompress.core.memo import NO_MEMO, Memo
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.types import Group, Narrowing, Record
from edgecompress.errors import ModelError
from edgecompress.factors.batch_norm import correct_statistics_
from edgecompress.factors.refit_narrowed import remaining_outputs
from edgecompress.factors.repair import Which, repair_
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.dimension_groups import find_dimension_groups
from edgecompress.nets.kept import kept_tensors
from edgecompress.nets.metric import PLAIN, LayerMetric
from edgecompress.nets.modules import find_layers, layer_named, replace_
from edgecompress.nets.narrowing import Kept, narrow_
from edgecompress.nets.sources import LoadedModel
from edgecompress.nets.width_groups import find_width_groups
from edgecompress.pipeline.evaluate import divergences, is_clearly_worse, log_probabilities
from edgecompress.pipeline.preparation import timed
from edgecompress.search.compensation import make_up_
from edgecompress.search.contract import Choices, plan_hash
from edgecompress.search.elimination import Reading
from edgecompress.search.readings import measure_readings, reading_cuts

Readings = Mapping[str, Sequence[Reading]]
"""By name of group, as `measure_readings` returns them."""
TakeReadings = Callable[[], Readings | None]
"""Hands them over; None where they are not known."""


def _unknown() -> None:
    """Knows no readings."""


@dataclass(frozen=True)
class Narrowable:
    """A network and the groups of units that can be taken away from it."""

    module: nn.Module
    """A copy of the model, in eval mode, with its attention in terms of plain layers."""
    groups: tuple[Group, ...]
    """None of them shares a place with another; dimensions come first, each kind in forward order."""
    refused: tuple[tuple[str, str], ...]
    """Modules that must stay as wide as they are, each with the reason."""
    rewritten: bool
    """Whether there was attention to rewrite: what a plan has to say."""


def find_narrowable(loaded: LoadedModel, *, widths: bool, dims: bool, residual: bool) -> Narrowable:
    """Returns what can be taken away: channels, or dimensions of transformers, or both.

    Where both finders name the same place, dimensions win. With `residual` the widths of the stages of
    residual networks count as well.

    Raises:
        ModelError: the network does not run on an image of its size, or weights are not finite.
    """
    module, shape = copy.deepcopy(loaded.module).eval(), loaded.ref.input_shape
    _check_finite(module)
    before = set(module.modules())
    refused = dict(rewrite_attention_(module, shape))
    rewritten = bool(set(module.modules()) - before)
    groups: tuple[Group, ...] = ()
    if dims:
        groups, reasons = find_dimension_groups(module, shape)
        refused |= dict(reasons)
    if widths:
        found = find_width_groups(module, shape, residual=residual)
        groups += _apart(found.groups, groups)
        refused = dict(found.refused) | refused
    makers = {group.name for group in groups}
    return Narrowable(module, groups, tuple(r for r in refused.items() if r[0] not in makers), rewritten)


def _check_finite(module: nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ModelError(f"{name}: is not finite; check the checkpoint")


def _apart(groups: Sequence[Group], others: Sequence[Group]) -> tuple[Group, ...]:
    """Returns the groups that share no axis of a module with others."""
    taken = {place for group in others for place in _places(group)}
    return tuple(group for group in groups if not taken & _places(group))


def _places(group: Group) -> set[tuple[str, str]]:
    both = {"channels": ("inputs", "outputs")}
    return {(cut.module, side) for cut in group.cuts for side in both.get(cut.axis, (cut.axis,))}


@dataclass(frozen=True)
class Blocks:
    """Low-rank blocks that take the place of layers no narrowed group touches."""

    choices: Choices
    build: Callable[[str], nn.Module]
    """Returns the block of a layer, with its factors."""
    metrics: Mapping[str, LayerMetric] = field(default_factory=dict)
    """By layer; plain where there is none."""
    which: Which = "both"


NO_BLOCKS = Blocks({}, lambda name: layer_named(nn.Module(), name))


@dataclass
class Narrowed:
    """A network without some units and how it came about."""

    module: nn.Module
    narrowings: tuple[Narrowing, ...]
    choices: Choices = field(default_factory=dict)
    steps: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def realise_narrowed(
    dense: nn.Module,
    groups: Sequence[Group],
    kept: Kept,
    calibration: Sequence[Tensor] = (),
    selection: Sequence[Tensor] = (),
    *,
    readings: TakeReadings = _unknown,
    blocks: Blocks = NO_BLOCKS,
    make_up: bool = True,
    refit: bool = True,
    batch_norm: str = "auto",
    seed: int = 0,
    progress: Progress = NO_PROGRESS,
    memo: Memo = NO_MEMO,
) -> Narrowed:
    """Returns a copy of `dense` without the units that are not kept, repaired as well as images allow.

    Readers first make up for what goes, which needs `readings` of the narrowed groups, measured where they
    are not given; they are asked for once and let go before the repair. Then units go, blocks come, layers
    are refitted and batch norms corrected; each is kept unless selection images say otherwise. Without
    calibration images units just go.

    Raises:
        ModelError: nothing would be left of a group, or a group does not fit the network.
    """
    job = _Job(dense, groups, kept, calibration, selection or calibration, blocks, seed, progress)
    made: list[Narrowed] = []

    def make() -> Narrowed:
        if not made:
            made.append(_realised(job, readings, make_up=make_up, refit=refit, batch_norm=batch_norm))
        return made[0]

    name = f"narrowed {_hash(kept, blocks.choices)}"
    tensors = kept_tensors(memo, name, lambda: make().module.state_dict())
    told = memo.record(name, _Told, lambda: _Told(steps=tuple(make().steps), seconds=make().seconds))
    if made:
        return made[0]
    result = _cut(job, None)
    result.module.load_state_dict(tensors)
    return Narrowed(result.module, result.narrowings, blocks.choices, list(told.steps), dict(told.seconds))


class _Told(Record):
    steps: tuple[tuple[str, str], ...]
    seconds: dict[str, float]


def _hash(kept: Kept, choices: Choices) -> str:
    units = json.dumps(sorted((name, list(own)) for name, own in kept.items()))
    return hashlib.sha256(f"{units} {plan_hash(choices)}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Job:
    dense: nn.Module
    groups: Sequence[Group]
    kept: Kept
    calibration: Sequence[Tensor]
    judges: Sequence[Tensor]
    """Batches that say whether a repair is kept."""
    blocks: Blocks
    seed: int
    progress: Progress

    def narrowed_groups(self) -> list[Group]:
        """Returns the groups that lose units."""
        return [group for group in self.groups if len(self.kept.get(group.name, ())) in range(1, group.width)]


def _realised(job: _Job, readings: TakeReadings, *, make_up: bool, refit: bool, batch_norm: str) -> Narrowed:
    seconds: dict[str, float] = {}
    held = [_taken(job, readings, seconds) if make_up and job.calibration else None]
    with timed(seconds, "narrowing"):
        result = _cut(job, held.pop())
    result.seconds = seconds
    if not job.calibration:
        return result
    reference = log_probabilities(job.dense, job.judges)
    if refit:
        with timed(seconds, "repair"):
            _repair_(result, job, reference)
    if batch_norm != "keep":
        with timed(seconds, "batch norm"):
            _correct_batch_norm_(result, job, reference, always=batch_norm == "correct")
    return result


def _taken(job: _Job, readings: TakeReadings, seconds: dict[str, float]) -> Readings:
    """Returns the readings of the narrowed groups, measured now where nobody knows them."""
    known = readings()
    if known is not None:
        return known
    with timed(seconds, "moments"):
        groups = [group for group in job.narrowed_groups() if reading_cuts(group)]
        batches = [(images, None) for images in job.calibration]
        return measure_readings(job.dense, groups, batches, job.seed, job.progress)


def _cut(job: _Job, readings: Readings | None) -> Narrowed:
    """Returns the network without its units and with its blocks, not yet repaired."""
    network = copy.deepcopy(job.dense)
    if readings is not None:
        make_up_(network, [group for group in job.groups if group.name in readings], job.kept, readings)
    narrowings = narrow_(network, job.groups, job.kept)
    for name in job.blocks.choices:
        replace_(network, name, job.blocks.build(name))
    return Narrowed(network, narrowings, job.blocks.choices)


def _repair_(result: Narrowed, job: _Job, reference: Tensor) -> None:
    narrowed = remaining_outputs(job.dense, job.groups, job.kept)
    names, shape = [*narrowed, *job.blocks.choices], job.calibration[0].shape[1:]
    layers, _ = find_layers(job.dense, names, (shape[0], shape[1], shape[2]))
    attempt = copy.deepcopy(result.module)
    repair_(
        attempt,
        job.dense,
        layers,
        job.blocks.choices,
        job.calibration,
        {name: job.blocks.metrics.get(name, PLAIN) for name in job.blocks.choices},
        which=job.blocks.which,
        seed=job.seed,
        progress=job.progress,
        narrowed=narrowed,
    )
    before, after = (divergences(one, job.judges, reference) for one in (result.module, attempt))
    # of few images chance alone makes some worse
    kept = bool(after.isfinite().all()) and not is_clearly_worse(before, after)
    _keep_(result, attempt, kept, "refit", (before, after))


def _correct_batch_norm_(result: Narrowed, job: _Job, reference: Tensor, *, always: bool) -> None:
    narrowed = remaining_outputs(job.dense, job.groups, job.kept)
    attempt = copy.deepcopy(result.module)
    if correct_statistics_(attempt, job.dense, job.calibration, narrowed=narrowed) == 0:
        return
    before, after = (divergences(one, job.judges, reference) for one in (result.module, attempt))
    _keep_(result, attempt, always or bool(after.mean() < before.mean()), "batch norm", (before, after))


def _keep_(
    result: Narrowed, attempt: nn.Module, kept: bool, step: str, divergence: tuple[Tensor, Tensor]
) -> None:
    if kept:
        result.module = attempt
    change = " -> ".join(f"{float(one.mean()):.4f}" for one in divergence)
    verdict = "kept" if kept else "dropped"
    result.steps.append((step, f"{verdict}, divergence from the dense model {change}"))
