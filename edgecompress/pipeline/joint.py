"""Channels, dimensions and low-rank blocks in one budget: what could become of a network, and the network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from edgecompress.core.memo import NO_MEMO, Memo
from edgecompress.core.progress import Progress
from edgecompress.core.types import Candidate, Metric
from edgecompress.errors import ConfigError
from edgecompress.factors.aware import TEMPERATURE
from edgecompress.nets.sources import LoadedModel
from edgecompress.pipeline.engine import block_of
from edgecompress.pipeline.latency_costs import Clock
from edgecompress.pipeline.narrowed import (
    Blocks,
    Narrowable,
    Narrowed,
    Readings,
    find_narrowable,
    realise_narrowed,
)
from edgecompress.pipeline.narrowed_costs import (
    NarrowedCost,
    Shapes,
    narrowed_macs,
    narrowed_ms,
    narrowed_params,
)
from edgecompress.pipeline.preparation import Prepared
from edgecompress.search.contract import Costs, plan_hash
from edgecompress.search.elimination import Elimination, eliminate
from edgecompress.search.joint import Joint, JointProblem, Ladder
from edgecompress.search.readings import measure_readings, reading_cuts
from edgecompress.search.unit_selection import best_units, ladder_of

SPACES = {
    "lowrank": "low-rank blocks in place of layers",
    "widths": "fewer channels",
    "dims": "fewer dimensions of attention and MLPs",
    "joint": "all of these, in one budget",
}
_TWICE = 2.0
"""Errors of blocks are twice the divergence, those of groups the divergence itself."""


def narrowable_in(loaded: LoadedModel, space: str) -> Narrowable:
    """Returns the groups of a space.

    Raises:
        ConfigError: there is no such space, or nothing of it in the model.
    """
    if space not in SPACES:
        raise ConfigError(f"space {space!r} is not known; known are: {', '.join(SPACES)}")
    found = find_narrowable(
        loaded, widths=space in ("widths", "joint"), dims=space in ("dims", "joint"), residual=False
    )
    groups = tuple(group for group in found.groups if reading_cuts(group) and len(ladder_of(group)) > 1)
    if not groups and space != "joint":
        reasons = "; ".join(f"{name}: {why}" for name, why in found.refused[:3])
        raise ConfigError(
            f"{loaded.ref.source}: has nothing to take away in space {space!r}"
            f"{f' ({reasons})' if reasons else ''}; try --space lowrank or joint"
        )
    return replace(found, groups=groups)


@dataclass(frozen=True)
class JointPrepared:
    """Everything that does not depend on the budget."""

    narrowable: Narrowable
    shapes: Shapes
    readings: Readings
    eliminations: Mapping[str, Elimination]
    low_rank: Prepared
    """Its setting has the images; its options are none where no block is offered."""

    def narrowed_cost(self, metric: Metric, clock: Clock | None) -> NarrowedCost:
        """Returns what narrower groups cost."""
        groups = self.narrowable.groups
        if metric == "ms":
            assert clock is not None
            return narrowed_ms(clock, self.shapes, groups)
        return (narrowed_macs if metric == "macs" else narrowed_params)(self.shapes, groups)

    @cached_property
    def ladders(self) -> tuple[Ladder, ...]:
        """The widths of all groups with their errors."""
        found = []
        for group in self.narrowable.groups:
            errors, widths = self.eliminations[group.name].errors, tuple(ladder_of(group))
            layers = tuple(dict.fromkeys(cut.module for cut in group.cuts))
            each = tuple(_TWICE * float(errors[width]) for width in widths)
            found.append(Ladder(group.name, widths, (0.0, *each[1:]), layers))
        return tuple(found)

    def problem(self, costs: Costs, clock: Clock | None, limit: float) -> JointProblem:
        """Returns the problem of one budget."""
        narrowed = self.narrowed_cost(costs.metric, clock)
        layers = {one.layer.name: one.layer for one in self.low_rank.options}

        def saves(one: Candidate) -> float:
            return costs.layer(layers[one.layers[0]]) - costs.candidate(one)

        return JointProblem(
            self.ladders,
            self.low_rank.options,
            costs.metric,
            limit,
            costs.dense,
            lambda widths: narrowed(widths) - narrowed.dense,
            narrowed.of_group,
            saves,
        )


def prepare_jointly(
    narrowable: Narrowable, shapes: Shapes, low_rank: Prepared, progress: Progress
) -> JointPrepared:
    """Measures what reads the units of all groups, and in which order units go."""
    groups, seed = narrowable.groups, low_rank.recipe.seed
    batches = [(images, None) for images in low_rank.setting.calibration]
    readings: Readings = {}
    if groups:
        readings = measure_readings(
            narrowable.module, groups, batches, seed, progress, temperature=TEMPERATURE
        )
    orders = {
        group.name: eliminate(readings[group.name], group.width)
        for group in progress.track(groups, "taking units away")
    }
    return JointPrepared(narrowable, shapes, readings, orders, low_rank)


def realise_jointly(prepared: JointPrepared, found: Joint, progress: Progress) -> Narrowed:
    """Returns the network of a choice, repaired; after a kill what was done before is read."""
    recipe = prepared.low_rank.recipe
    return _realised(
        prepared, found, recipe.refit != "none", recipe.batch_norm, progress, prepared.low_rank.memo
    )


def built_jointly(prepared: JointPrepared, found: Joint, progress: Progress) -> Narrowed:
    """Returns the network of a choice, not yet repaired."""
    return _realised(prepared, found, refit=False, batch_norm="keep", progress=progress, memo=NO_MEMO)


def _realised(
    prepared: JointPrepared, found: Joint, refit: bool, batch_norm: str, progress: Progress, memo: Memo
) -> Narrowed:
    low_rank = prepared.low_rank
    setting, recipe = low_rank.setting, low_rank.recipe
    groups = [one for one in prepared.narrowable.groups if found.widths[one.name] < one.width]
    kept = {
        one.name: best_units(prepared.eliminations[one.name].scores, found.widths[one.name]) for one in groups
    }
    which = "both" if recipe.refit == "none" else recipe.refit
    blocks = Blocks(found.choices, partial(block_of, low_rank, found.choices), low_rank.metrics, which)
    return realise_narrowed(
        prepared.narrowable.module,
        groups,
        kept,
        setting.calibration,
        setting.selection,
        readings=lambda: {name: prepared.readings[name] for name in kept},
        blocks=blocks,
        refit=refit,
        batch_norm=batch_norm,
        seed=recipe.seed,
        progress=progress,
        memo=memo,
    )


def joint_hash(found: Joint) -> str:
    """Returns a short name that tells choices apart."""
    text = f"{sorted(found.widths.items())} {plan_hash(found.choices)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
