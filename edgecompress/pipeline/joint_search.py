"""`edgecompress search --space widths|dims|joint`: choose, build, export, measure, correct, choose again."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from torch import nn

from edgecompress.core.memo import Memo
from edgecompress.core.results import ModelSummary
from edgecompress.core.search_results import Compared, DeviceTime, FrontPoint, Round, SearchResult
from edgecompress.errors import BudgetError, EdgeCompressError
from edgecompress.pipeline.joint import (
    JointPrepared,
    joint_hash,
    prepare_jointly,
    realise_jointly,
)
from edgecompress.pipeline.joint_result import (
    Measured,
    Told,
    Turn,
    joint_latency,
    joint_plan,
    layer_changes,
    named_changes,
)
from edgecompress.pipeline.joint_trial import choose_by_trial, on_one_scale, trial_divergence
from edgecompress.pipeline.latency_costs import clock_warnings
from edgecompress.pipeline.narrowed import Narrowable, Narrowed
from edgecompress.pipeline.narrowed_costs import shapes_of
from edgecompress.pipeline.preparation import Offer, prepare
from edgecompress.pipeline.search_device import Target
from edgecompress.pipeline.search_front import POINTS
from edgecompress.pipeline.search_job import Job
from edgecompress.pipeline.search_loop import device_of, most_rounds
from edgecompress.pipeline.search_standing import CLOSE, best, meets
from edgecompress.search.contract import Costs
from edgecompress.search.joint import Joint, front

SEARCH = "one price for all"


def searched_jointly(
    job: Job, narrowable: Narrowable, offered: Offer, path: Path, memo: Memo
) -> tuple[SearchResult, nn.Module]:
    """Returns the result and its network; `path` is where the run will stand.

    Raises:
        BudgetError: the limit cannot be met.
        DeviceError: the device was at hand and is no longer.
    """
    begun, progress, material = time.perf_counter(), job.progress, job.material
    dense = memo.record(
        "dense", ModelSummary, lambda: material.summary(narrowable.module, progress, what="dense")
    )
    low_rank = prepare(material.setting(job.costs()), job.recipe, progress, offered=offered, memo=memo)
    shapes = shapes_of(narrowable.module, material.loaded.ref.input_shape)
    prepared = prepare_jointly(narrowable, shapes, low_rank, progress)
    prepared_s = time.perf_counter() - begun
    turns, device, why_not = _turns(job, prepared, memo)
    rounds = [one.round for one in turns if one.round is not None]
    last = turns[best(rounds)] if rounds else turns[-1]
    after = memo.record(
        f"after {joint_hash(last.found)}",
        ModelSummary,
        lambda: material.summary(last.network.module, progress, what="compressed"),
    )
    told = _told(job, prepared, last, rounds)
    measured = Measured() if device is None else _measured(job, device, last, memo)
    latency = None
    if job.clock is not None:
        latency = joint_latency(job.clock, prepared, last, rounds, told, measured, why_not)
    all_s = time.perf_counter() - begun
    seconds = {
        **low_rank.seconds,
        "preparing": prepared_s,
        "choosing, building, measuring": all_s - prepared_s,
        "all": all_s,
    }
    result = SearchResult(
        run=str(path),
        search=SEARCH,
        metric=job.goal.metric,
        target=told.target,
        dense_cost=told.dense_cost,
        cost=told.cost,
        met=told.reason is None,
        reason=told.reason,
        plan=joint_plan(material.loaded.ref, prepared, last),
        dense=dense,
        compressed=after,
        layers=tuple(layer_changes(prepared, last.found)),
        latency=latency,
        front=told.front,
        front_shown=job.front,
        slower=offered.slower,
        split=material.split,
        steps=(
            *material.warnings,
            *clock_warnings(job.clock),
            *(("note", one) for one in told.notes),
            *last.network.steps,
        ),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )
    return result, last.network.module


def _target(job: Job) -> tuple[Costs, float]:
    costs = job.costs()[job.goal.metric]
    assert job.goal.budget is not None  # checked before
    return costs, job.goal.budget.limit(costs.dense)


def _turns(job: Job, prepared: JointPrepared, memo: Memo) -> tuple[list[Turn], Target | None, str | None]:
    """Chooses and measures until a network is near enough, or the rounds are spent."""
    metric, target = job.goal.metric, _target(job)[1]
    device, why_not = device_of(job.loop(), memo) if metric == "ms" else (None, None)
    clock, turns = job.clock, list[Turn]()
    for number in range(1, (most_rounds(job.loop()) if device is not None else 1) + 1):
        costs = job.costs()[metric] if clock is None else clock.costs()
        problem = prepared.problem(costs, clock, target)
        try:
            found = choose_by_trial(problem, partial(trial_divergence, prepared))
        except BudgetError:
            if not turns:
                raise
            break
        if any(found == one.found for one in turns):  # the correction changes nothing any more
            break
        network = realise_jointly(prepared, found, job.progress)
        if device is None or clock is None:
            return [Turn(found, network, None)], None, why_not
        turn, measured_ms = _timed(job, device, memo, found, network, number, problem.cost(found), target)
        turns.append(turn)
        if abs(measured_ms / target - 1) <= CLOSE:
            break
        clock = clock.corrected(measured_ms / problem.cost(found))
    return turns, device, why_not


def _timed(
    job: Job,
    device: Target,
    memo: Memo,
    found: Joint,
    network: Narrowed,
    number: int,
    predicted_ms: float,
    target_ms: float,
) -> tuple[Turn, float]:
    """Exports a network and measures it."""
    name = joint_hash(found)
    assert memo.directory is not None
    file = memo.directory / f"compressed-{name}{device.dense.suffix}"
    if not file.is_file():
        part = file.with_name(f"part{file.suffix}")  # converters go by the suffix
        device.write(network.module, part)
        part.replace(file)
    time = memo.record(f"file time {name}", DeviceTime, lambda: device.file_time(file))
    told = Round(
        number=number,
        limit_ms=target_ms,
        predicted_ms=predicted_ms,
        measured_ms=time.ms,
        file="exported",
        met=meets(job.loop(), time.ms, target_ms),
        doubts=time.doubts,
    )
    return Turn(found, network, told, file), time.ms


def _measured(job: Job, device: Target, last: Turn, memo: Memo) -> Measured:
    """Nothing that goes wrong here may cost the network, which is finished."""
    assert last.round is not None and last.file is not None
    file, final = last.file, DeviceTime(ms=last.round.measured_ms, doubts=last.round.doubts)
    try:
        dense = memo.record("dense time", DeviceTime, lambda: device.file_time(device.dense))
        compared = memo.record(
            f"compared {joint_hash(last.found)}",
            Compared,
            lambda: device.compare(file, preset=job.preset, progress=job.progress),
        )
    except EdgeCompressError:
        return Measured(final=final)
    return Measured(dense, final, compared)


def _told(job: Job, prepared: JointPrepared, last: Turn, rounds: list[Round]) -> Told:
    costs, target = _target(job)
    problem = prepared.problem(costs, job.clock, target)
    reason = None
    if last.round is not None and not last.round.met:
        over = f"{last.round.measured_ms / target - 1:.1%}".replace("%", " %")
        reason = (
            f"the device takes {last.round.measured_ms:.4g} ms, {over} more than the {target:.4g} asked for, "
            f"after {len(rounds)} rounds"
        )
    points = tuple(
        FrontPoint(
            cost=problem.cost(one),
            share=problem.cost(one) / costs.dense,
            predicted_loss=problem.error(one),
            divergence=None,
            agreement=None,
            choices=named_changes(prepared, one),
        )
        for one in front(on_one_scale(problem, partial(trial_divergence, prepared)), POINTS)
    )
    notes = prepared.narrowed_cost(costs.metric, job.clock).notes
    return Told(target, costs.dense, problem.cost(last.found), reason, points[::-1], notes)
