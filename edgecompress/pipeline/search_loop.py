"""The loop that closes: choose a plan, measure it, correct the clock by what was measured, choose again."""

from __future__ import annotations

from dataclasses import replace

from edgecompress.core.memo import Memo
from edgecompress.core.search_results import DeviceTime, Round
from edgecompress.core.types import Metric
from edgecompress.errors import BudgetError, ConfigError, ExportError
from edgecompress.pipeline.engine import Chosen
from edgecompress.pipeline.latency_costs import Clock
from edgecompress.pipeline.preparation import Prepared
from edgecompress.pipeline.realised import realise_once
from edgecompress.pipeline.search_confirm import confirm
from edgecompress.pipeline.search_device import UNREACHABLE, Target, open_target
from edgecompress.pipeline.search_drop import drop_of
from edgecompress.pipeline.search_goal import floor_of
from edgecompress.pipeline.search_standing import CLOSE, Loop, Outcome, Standing, best, meets, timed, unmet
from edgecompress.search.contract import Choices, Problem, plan_hash
from edgecompress.train.parallel import is_first, same_everywhere

ROUNDS = 3
JUST_ABOVE = 1 + 1e-9
"""For a limit that is a sum of costs itself."""


def close_loop(loop: Loop, prepared: Prepared, metric: Metric, target: float) -> Outcome:
    """Returns the network of the plan that meets the target, as measured where that is possible.

    Raises:
        BudgetError: not even the table's prediction can meet it.
        DeviceError: the device was at hand and is no longer.
    """
    device, why_not = device_of(loop, prepared.memo) if metric == "ms" else (None, None)
    standing = Standing(loop.clock)
    if same_everywhere(float(device is not None)):
        try:
            _rounds_(loop, prepared, device, target, standing)
        except ExportError as error:
            if loop.rounds is not None:  # asked for in so many words
                raise
            device, why_not = None, str(error)
    if not standing.plans:
        standing.plans.append(_chosen(loop, prepared, metric, target, standing))
    outcome = _realised(loop, prepared, metric, target, standing, why_not)
    return outcome if device is None else confirm(loop, prepared, device, target, standing, outcome)


def device_of(loop: Loop, memo: Memo) -> tuple[Target | None, str | None]:
    """Returns the table's device, or why it is not used.

    Raises:
        DeviceError: it was asked for and is not at hand.
    """
    if not is_first():
        return None, "measured by the first process"
    if loop.clock is None or loop.rounds == 0:
        return None, None if loop.clock is None else "not asked for (--rounds 0)"
    folder = memo.directory
    assert folder is not None  # a search always keeps what it has finished
    loaded, table = loop.material.loaded, loop.clock.table
    options = replace(loop.device, threads=table.conditions.threads, cores=table.conditions.cores)
    try:
        return open_target(
            loop.clock, loaded.ref, loaded.module, options, folder=folder, seed=loop.seed
        ), None
    except (*UNREACHABLE, ConfigError) as error:
        if loop.rounds is not None:  # asked for in so many words
            raise
        return None, f"{table.device} is not available: {error}"


def _chosen(loop: Loop, prepared: Prepared, metric: Metric, limit: float, standing: Standing) -> Choices:
    problem = prepared.problem(metric, limit)
    found = loop.strategy.choose(prepared, problem, loop.material, loop.seed, loop.progress)
    standing.steps = found.steps
    for stage, seconds in found.seconds.items():
        standing.seconds[stage] = standing.seconds.get(stage, 0.0) + seconds
    return (
        found.choices if loop.max_drop is None else _losing_little(loop, prepared, problem, found, standing)
    )


def _losing_little(
    loop: Loop, prepared: Prepared, problem: Problem, found: Chosen, standing: Standing
) -> Choices:
    """Returns what was found, or else the plan the limit comes from, which loses no more than is allowed."""
    assert loop.max_drop is not None
    drop = drop_of(prepared, loop.material, found.choices, loop.progress)
    kept = drop <= loop.max_drop
    told = f"{drop:.2f} percentage points on the selection images{'' if kept else ', too much: dropped'}"
    standing.steps = (*standing.steps, (f"lost by {loop.strategy.name}", told))
    return found.choices if kept else prepared.selection.select(problem)


def _rounds_(
    loop: Loop, prepared: Prepared, device: Target | None, target: float, standing: Standing
) -> None:
    """Chooses and measures until a plan is near enough, or the rounds are spent."""
    for number in range(1, most_rounds(loop) + 1):
        assert standing.clock is not None
        now = prepared.costing(standing.clock.costs())
        choices, limit = _next_plan(loop, now, target, standing)
        if choices is None or choices in standing.plans:  # the correction changes nothing any more
            return
        predicted = now.problem("ms", target).total(choices)
        time = _plan_time(prepared, device, choices, standing)
        standing.plans.append(choices)
        standing.rounds.append(
            Round(
                number=number,
                limit_ms=limit * _correction(loop, standing.clock),
                predicted_ms=predicted,
                measured_ms=time.ms,
                file="spliced",
                met=meets(loop, time.ms, target),
                doubts=time.doubts,
            )
        )
        if abs(time.ms / target - 1) <= CLOSE or standing.reason is not None:
            return
        standing.clock = standing.clock.corrected(time.ms / predicted)


def most_rounds(loop: Loop) -> int:
    """Returns how often at most a plan is measured."""
    if loop.max_drop is not None:
        return 1
    return ROUNDS if loop.rounds is None else loop.rounds


def _next_plan(loop: Loop, now: Prepared, target: float, standing: Standing) -> tuple[Choices | None, float]:
    """Returns a plan and its limit: the target, or the fastest there is once that is out of reach."""
    try:
        return _chosen(loop, now, "ms", target, standing), target
    except BudgetError as error:
        if not standing.rounds:
            raise
        standing.reason = str(error)
    fastest = JUST_ABOVE * floor_of(now.setting.costs["ms"], now.options)
    try:
        return _chosen(loop, now, "ms", fastest, standing), fastest
    except BudgetError:  # some rules cannot go as far
        return None, fastest


def _correction(loop: Loop, clock: Clock) -> float:
    """Returns how much of the target the uncorrected table was allowed."""
    assert loop.clock is not None
    return loop.clock.calibration.scale / clock.calibration.scale


def _plan_time(prepared: Prepared, device: Target | None, choices: Choices, standing: Standing) -> DeviceTime:
    def measure() -> DeviceTime:
        assert device is not None  # asked of the process that has it
        layers = {layer.name: layer for layer in device.clock.layers}
        return device.plan_time([(layers[name], choice.blocks[0]) for name, choice in choices.items()])

    with timed(standing):
        return prepared.memo.record(f"plan time {plan_hash(choices)}", DeviceTime, measure)


def _realised(
    loop: Loop, prepared: Prepared, metric: Metric, target: float, standing: Standing, why_not: str | None
) -> Outcome:
    """Builds and repairs the best plan; what is known of its time is what was measured in the rounds."""
    rounds = standing.rounds
    choices = standing.plans[best(rounds)] if rounds else standing.plans[0]
    compressed = realise_once(prepared, choices, loop.progress)
    met = not rounds or rounds[best(rounds)].met
    return Outcome(
        compressed,
        prepared.problem(metric, target).total(choices),
        met=met,
        reason=None if met else unmet(target, rounds[best(rounds)].measured_ms, standing),
        steps=(*standing.steps, *compressed.steps),
        seconds={**standing.seconds, **compressed.seconds},
        rounds=tuple(rounds),
        not_measured=why_not,
    )
