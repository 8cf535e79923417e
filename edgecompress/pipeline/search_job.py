"""What a search does from statistics to result, once its options are understood."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress.core.memo import Memo
from edgecompress.core.progress import Progress
from edgecompress.core.results import ModelSummary
from edgecompress.core.search_results import FrontPoint, Latency, LayerTime, SearchResult
from edgecompress.core.types import Metric
from edgecompress.devices.contract import Options as DeviceOptions
from edgecompress.errors import BudgetError
from edgecompress.pipeline.latency_costs import Clock, clock_warnings
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Offer, Prepared, Recipe, offer, prepare
from edgecompress.pipeline.search_drop import limit_for_drop
from edgecompress.pipeline.search_front import front_points
from edgecompress.pipeline.search_goal import Goal, already_met, check_limit, floor_of
from edgecompress.pipeline.search_loop import close_loop
from edgecompress.pipeline.search_standing import Loop, Outcome
from edgecompress.pipeline.strategies import Strategy
from edgecompress.search.contract import Costs, shape_costs


@dataclass(frozen=True)
class Job:
    """The options of a search, understood."""

    goal: Goal
    strategy: Strategy
    recipe: Recipe
    material: Material
    clock: Clock | None
    device: DeviceOptions
    rounds: int | None
    preset: str
    front: bool
    seed: int
    progress: Progress

    def costs(self) -> dict[Metric, Costs]:
        """In all units a goal may have."""
        found = shape_costs(self.material.totals)
        return found if self.clock is None else {**found, "ms": self.clock.costs()}

    def offered(self) -> Offer:
        """What the search chooses among; only what pays.

        Raises:
            BudgetError: the target is out of reach.
        """
        costs = self.costs()[self.goal.metric]
        found = offer(self.material.setting(self.costs()), self.recipe, paying=costs)
        if not found.options:
            raise BudgetError(
                f"{self.material.loaded.ref.source}: no block costs less {costs.metric} than its layer, so "
                "there is nothing to search; try other --layers, --methods or --families"
            )
        if self.goal.budget is not None:
            check_limit(self.goal.budget.limit(costs.dense), costs, found.options)
        return found

    def offered_jointly(self, *, low_rank: bool) -> Offer:
        """What may become of layers beside getting narrower; nothing where only that is searched.

        Raises:
            BudgetError: the dense model meets the target already.
        """
        costs = self.costs()[self.goal.metric]
        assert self.goal.budget is not None
        limit = self.goal.budget.limit(costs.dense)
        if limit >= costs.dense:
            raise already_met(limit, costs)
        if not low_rank:
            return Offer((), ())
        return offer(self.material.setting(self.costs()), self.recipe, paying=costs)

    def loop(self) -> Loop:
        """What the loop works with."""
        return Loop(
            self.strategy,
            self.material,
            self.clock,
            self.device,
            self.rounds,
            self.preset,
            self.seed,
            self.progress,
            self.goal.max_drop,
        )


def searched(job: Job, offered: Offer, path: Path, memo: Memo) -> tuple[SearchResult, nn.Module]:
    """Returns the result and its network; `path` is where the run will stand.

    Raises:
        BudgetError: no plan loses as little as was asked for.
        DeviceError: the device was at hand and is no longer.
    """
    begun, progress = time.perf_counter(), job.progress
    module = job.material.loaded.module
    dense = memo.record("dense", ModelSummary, lambda: job.material.summary(module, progress, what="dense"))
    prepared = prepare(job.material.setting(job.costs()), job.recipe, progress, offered=offered, memo=memo)
    fronted = time.perf_counter()
    front = front_points(prepared, job.goal.metric, progress) if prepared.selection.needs_errors else ()
    targeted = time.perf_counter()
    target = _target(job, prepared)
    seconds = {**prepared.seconds, "front": targeted - fronted, "target": time.perf_counter() - targeted}
    found = close_loop(job.loop(), prepared, job.goal.metric, target)
    after = memo.record(
        f"after {found.hash}",
        ModelSummary,
        lambda: job.material.summary(found.compressed.module, progress, what="compressed"),
    )
    seconds |= {**found.seconds, "all": time.perf_counter() - begun}
    summaries = dense, after
    result = _result(job, offered, prepared, found, summaries, front, seconds, target, path)
    return result, found.compressed.module


def _target(job: Job, prepared: Prepared) -> float:
    costs = prepared.setting.costs[job.goal.metric]
    if job.goal.budget is not None:
        return job.goal.budget.limit(costs.dense)
    assert job.goal.max_drop is not None
    floor = floor_of(costs, prepared.options)
    return limit_for_drop(prepared, job.material, job.goal.metric, job.goal.max_drop, floor, job.progress)


def _result(
    job: Job,
    offered: Offer,
    prepared: Prepared,
    found: Outcome,
    summaries: tuple[ModelSummary, ModelSummary],
    front: tuple[FrontPoint, ...],
    seconds: dict[str, float],
    target: float,
    path: Path,
) -> SearchResult:
    choices = found.compressed.choices
    return SearchResult(
        run=str(path),
        search=job.strategy.name,
        metric=job.goal.metric,
        target=target,
        max_drop=job.goal.max_drop,
        dense_cost=prepared.setting.costs[job.goal.metric].dense,
        cost=found.cost,
        met=found.met,
        reason=found.reason,
        plan=job.material.plan(choices, offered.skipped),
        dense=summaries[0],
        compressed=summaries[1],
        layers=job.material.changes(choices),
        latency=None if job.clock is None else _latency(job, job.clock, found),
        front=front,
        front_shown=job.front,
        slower=offered.slower,
        split=job.material.split,
        steps=(*job.material.warnings, *clock_warnings(job.clock), *found.steps),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )


def _latency(job: Job, clock: Clock, found: Outcome) -> Latency:
    costs, choices = clock.costs(), found.compressed.choices
    return Latency(
        table=str(clock.path),
        device=clock.table.device,
        provenance=clock.table.provenance,
        dense_predicted_ms=costs.dense,
        predicted_ms=found.cost,
        dense_measured_ms=found.dense_ms,
        measured_ms=found.measured_ms,
        rounds=found.rounds,
        layers=tuple(
            LayerTime(
                name=layer.name,
                before_ms=costs.layer(layer),
                after_ms=costs.candidate(choices[layer.name])
                if layer.name in choices
                else costs.layer(layer),
            )
            for layer in job.material.layers
        ),
        comparison=found.comparison,
        doubts=found.doubts,
        not_measured=found.not_measured,
    )
