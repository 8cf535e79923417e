"""`edgecompress search`: the best plan for so many milliseconds, and whether the device agrees.

search, measure, correct the calibration, search again, until the measured value is what was asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress.core.memo import Memo
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import ModelSummary
from edgecompress.core.search_results import FrontPoint, Latency, LayerTime, SearchResult
from edgecompress.core.store import write_record
from edgecompress.core.types import Metric, Size
from edgecompress.core.unfinished import Start, resumable_run
from edgecompress.devices.contract import Options as DeviceOptions
from edgecompress.nets.artefact import save_artefact
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.engine import Offer, Prepared, Recipe, offer, prepare
from edgecompress.pipeline.latency_costs import Clock, read_clock
from edgecompress.pipeline.material import ImageOptions, Material, gather
from edgecompress.pipeline.search_front import front_points
from edgecompress.pipeline.search_goal import Goal, check_limit, floor_of, read_goal
from edgecompress.pipeline.search_loop import Loop, Outcome, close_loop, limit_for_drop
from edgecompress.pipeline.strategies import Strategy, find_strategy
from edgecompress.pipeline.target_layers import chosen_layers
from edgecompress.search.contract import Costs, shape_costs

SEARCH_FILE = "search.json"
TABLE = "pixel4.json"
MODEL = "zoo:fashion_resnet"
METHODS = ("lowrank", "branches")


def search(
    model: str = MODEL,
    *,
    latency_table: str = TABLE,
    target_ms: float | None = None,
    target_speedup: float | None = None,
    max_drop: float | None = None,
    budget: str | None = None,
    front: bool = False,
    search: str = "hybrid",
    weights: str | None = None,
    data: str | None = None,
    report_data: str | None = None,
    methods: tuple[str, ...] = METHODS,
    families: tuple[str, ...] = (),
    factors: str = "aware",
    refit: bool = True,
    batch_norm: str = "auto",
    layers: str = "paper",
    calibration_images: int | None = None,
    selection_images: int | None = None,
    report_images: int | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    classes: int | None = None,
    rounds: int | None = None,
    preset: str = "quick",
    serial: str | None = None,
    benchmark_binary: Path | None = None,
    timeout_s: float = 300.0,
    adb: str = "adb",
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path = Path("runs"),
    overwrite: bool = False,
    resuming: bool = False,
    progress: Progress = NO_PROGRESS,
) -> SearchResult:
    """Searches the plan that keeps most accuracy within a time, builds, repairs and measures it.

    Args:
        model: Source as for `compress`.
        latency_table: Of the device: a file, or the name of a shipped table.
        target_ms: Milliseconds the device may take.
        target_speedup: The same as a share of the dense model's; 1.5 when no goal is given.
        max_drop: Percentage points of accuracy that may be lost on selection images, for the fastest plan.
        budget: In words, as `ms=60%`, `macs=50%` or `params=1.2M`; the last two need no table.
        front: Show the whole trade-off; it is written in any case.
        search: Of `edgecompress list searches`.
        weights: Checkpoint; this and the options to `classes` as for `compress`.
        data: Images.
        report_data: Other images for the report.
        methods: Ways to rewrite layers.
        families: Only these of the methods.
        factors: How factors are found.
        refit: Fit the factors to the dense layers' outputs.
        batch_norm: What happens to batch-norm statistics.
        layers: Which may be rewritten.
        calibration_images: Images that shape the weights.
        selection_images: Images that choose.
        report_images: Images that are only reported on.
        input_size: Height and width.
        channels: Of the input.
        mean: Per channel.
        std: Per channel.
        classes: Of the output.
        rounds: How often at most the plan is measured and the search corrected; 0 trusts the table, None
            is 3 where the table's device is at hand and 0 otherwise.
        preset: How long dense and compressed are compared.
        serial: Which phone.
        benchmark_binary: Google's `benchmark_model` for the phone.
        timeout_s: Of one call to the device.
        adb: Program that reaches phones.
        seed: Makes the run repeatable.
        name: Of the run.
        runs_dir: Where runs are kept.
        overwrite: Replace the run of that name.
        resuming: Go on with the unfinished run of that name.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option, the model, the data, the table or the target is wrong.
    """
    where = ("progress", "resuming")
    options = {key: value for key, value in locals().items() if key not in where}
    goal = read_goal(target_ms=target_ms, target_speedup=target_speedup, max_drop=max_drop, budget=budget)
    strategy = find_strategy(search)
    recipe = Recipe(
        methods,
        families,
        strategy.rank_selection,
        strategy.factors or factors,
        "both" if refit else "none",
        strategy.local_search,
        batch_norm,
        seed,
    )
    recipe.check()
    loaded = load_model(
        model, weights=weights, classes=classes, input_size=input_size, channels=channels, mean=mean, std=std
    )
    images = ImageOptions(data, report_data, calibration_images, selection_images, report_images, seed)
    material = gather(loaded, chosen_layers(loaded, layers), images, images_needed=True)
    clock = read_clock(latency_table, loaded, material.layers) if goal.metric == "ms" else None
    device = DeviceOptions(
        serial=serial, benchmark_binary=benchmark_binary, timeout_s=timeout_s, adb=adb, clean=True
    )
    job = _Job(goal, strategy, recipe, material, clock, device, rounds, preset, front, seed, progress)
    offered = job.offered()  # a target out of reach is known before anything takes long
    inputs = material.inputs | ({} if clock is None else {str(clock.path): clock.table.sha256})
    start = Start(runs_dir, "search", name, options, seed, inputs, overwrite, resuming)
    with resumable_run(start) as (run, memo):
        result, module = _searched(job, offered, run.path, memo)
        save_artefact(run.directory, result.plan, module)
        write_record(run.directory / SEARCH_FILE, result)
    return result


@dataclass(frozen=True)
class _Job:
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
        if self.goal.budget is not None:
            check_limit(self.goal.budget.limit(costs.dense), costs, found.options)
        return found


def _searched(job: _Job, offered: Offer, path: Path, memo: Memo) -> tuple[SearchResult, nn.Module]:
    start, progress = time.perf_counter(), job.progress
    module = job.material.loaded.module
    dense = memo.record("dense", ModelSummary, lambda: job.material.summary(module, progress, what="dense"))
    prepared = prepare(job.material.setting(job.costs()), job.recipe, progress, offered=offered, memo=memo)
    front = front_points(prepared, job.goal.metric, progress) if prepared.selection.needs_errors else ()
    fronted = time.perf_counter()
    loop = Loop(job.strategy, job.material, job.clock, job.device, job.rounds, job.preset, job.seed, progress)
    target = _target(job, prepared, loop)
    found = close_loop(loop, prepared, job.goal.metric, target)
    after = memo.record(
        f"after {found.hash}",
        ModelSummary,
        lambda: job.material.summary(found.compressed.module, progress, what="compressed"),
    )
    seconds = {**prepared.seconds, "front": fronted - start - sum(prepared.seconds.values())}
    seconds |= found.seconds
    seconds["all"] = time.perf_counter() - start
    return _result(
        job, offered, prepared, found, (dense, after), front, seconds, target, path
    ), found.compressed.module


def _target(job: _Job, prepared: Prepared, loop: Loop) -> float:
    costs = prepared.setting.costs[job.goal.metric]
    if job.goal.budget is not None:
        return job.goal.budget.limit(costs.dense)
    assert job.goal.max_drop is not None
    floor = floor_of(costs, prepared.options)
    return limit_for_drop(loop, prepared, job.goal.metric, job.goal.max_drop, (floor, costs.dense))


def _result(
    job: _Job,
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
        steps=(*job.material.warnings, *found.steps),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )


def _latency(job: _Job, clock: Clock, found: Outcome) -> Latency:
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
        not_measured=found.not_measured,
    )
