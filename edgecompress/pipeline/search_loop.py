"""The loop that closes: choose a plan, measure it, correct the clock by what was measured, choose again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from edgecompress.core.measurement import Comparison
from edgecompress.core.progress import Progress
from edgecompress.core.search_results import Round
from edgecompress.core.types import Metric
from edgecompress.devices.contract import Options as DeviceOptions
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.pipeline.engine import Compressed, Prepared
from edgecompress.pipeline.evaluate import accuracy, batch_size, log_probabilities
from edgecompress.pipeline.latency_costs import Clock
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.realised import realise_once
from edgecompress.pipeline.search_device import UNREACHABLE, Target, open_target
from edgecompress.pipeline.strategies import Strategy
from edgecompress.search.contract import Choices, plan_hash

CLOSE = 0.03
"""How far a measured value may be above the target, and below it before the search gives time back."""
ROUNDS = 3
DROP_STEPS = 6
"""Halvings of the span between the fastest plan and the dense model."""


@dataclass(frozen=True)
class Loop:
    """What the loop works with."""

    strategy: Strategy
    material: Material
    clock: Clock | None
    device: DeviceOptions
    rounds: int | None
    """None: as usual, where the device is at hand."""
    preset: str
    seed: int
    progress: Progress


@dataclass(frozen=True)
class Outcome:
    """Where the loop ended."""

    compressed: Compressed
    cost: float
    """Predicted by the table as it is."""
    met: bool
    reason: str | None
    steps: tuple[tuple[str, str], ...]
    seconds: dict[str, float]
    rounds: tuple[Round, ...] = ()
    dense_ms: float | None = None
    measured_ms: float | None = None
    comparison: Comparison | None = None
    not_measured: str | None = None

    @cached_property
    def hash(self) -> str:
        """Of the plan."""
        return plan_hash(self.compressed.choices)


@dataclass
class _Standing:
    """The loop while it runs."""

    clock: Clock | None
    rounds: list[Round] = field(default_factory=list)
    plans: list[Choices] = field(default_factory=list)
    """Of the rounds."""
    steps: tuple[tuple[str, str], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    reason: str | None = None


def close_loop(loop: Loop, prepared: Prepared, metric: Metric, target: float) -> Outcome:
    """Returns the network of the plan that meets the target, as measured where that is possible.

    Raises:
        BudgetError: not even the table's prediction can meet it.
        DeviceError: the device was at hand and is no longer.
    """
    found, why_not = _device(loop, prepared) if metric == "ms" else (None, None)
    standing = _Standing(loop.clock)
    if found is None:
        choices = _chosen(loop, prepared, metric, target, standing)
        standing.plans.append(choices)
    else:
        _rounds_(loop, prepared, found, target, standing)
    return _realised(loop, prepared, metric, target, standing, found, why_not)


def _device(loop: Loop, prepared: Prepared) -> tuple[Target | None, str | None]:
    if loop.clock is None or loop.rounds == 0:
        return None, None if loop.clock is None else "not asked for (--rounds 0)"
    folder = prepared.memo.directory
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
        return None, f"{table.device} is not at hand: {error}"


def _chosen(loop: Loop, prepared: Prepared, metric: Metric, limit: float, standing: _Standing) -> Choices:
    problem = prepared.problem(metric, limit)
    found = loop.strategy.choose(prepared, problem, loop.material, loop.seed, loop.progress)
    standing.steps = found.steps
    for stage, seconds in found.seconds.items():
        standing.seconds[stage] = standing.seconds.get(stage, 0.0) + seconds
    return found.choices


def _rounds_(loop: Loop, prepared: Prepared, device: Target, target: float, standing: _Standing) -> None:
    """Chooses and measures until a plan is near enough, or the rounds are spent."""
    for number in range(1, (ROUNDS if loop.rounds is None else loop.rounds) + 1):
        assert standing.clock is not None
        now = prepared.costing(standing.clock.costs())
        try:
            choices = _chosen(loop, now, "ms", target, standing)
        except BudgetError as error:
            if not standing.rounds:
                raise
            standing.reason = str(error)
            return
        if choices in standing.plans:  # the correction changes nothing any more
            return
        predicted = now.problem("ms", target).total(choices)
        measured = _plan_ms(prepared, device, choices)
        met = measured <= (1 + CLOSE) * target
        standing.plans.append(choices)
        standing.rounds.append(
            Round(
                number=number,
                limit_ms=target * _correction(loop, standing.clock),
                predicted_ms=predicted,
                measured_ms=measured,
                file="spliced",
                met=met,
            )
        )
        if abs(measured / target - 1) <= CLOSE:
            return
        standing.clock = standing.clock.corrected(measured / predicted)


def _correction(loop: Loop, clock: Clock) -> float:
    """Returns how much of the target the uncorrected table was allowed."""
    assert loop.clock is not None
    return loop.clock.calibration.scale / clock.calibration.scale


def _plan_ms(prepared: Prepared, device: Target, choices: Choices) -> float:
    layers = {layer.name: layer for layer in device.clock.layers}
    changes = [(layers[name], choice.blocks[0]) for name, choice in choices.items()]
    return prepared.memo.number(f"plan ms {plan_hash(choices)}", lambda: device.plan_ms(changes))


def _realised(
    loop: Loop,
    prepared: Prepared,
    metric: Metric,
    target: float,
    standing: _Standing,
    device: Target | None,
    why_not: str | None,
) -> Outcome:
    choices = standing.plans[_best(standing.rounds)] if standing.rounds else standing.plans[0]
    compressed = realise_once(prepared, choices, loop.progress)
    cost = prepared.problem(metric, target).total(choices)
    outcome = Outcome(
        compressed,
        cost,
        met=True,
        reason=None,
        steps=(*standing.steps, *compressed.steps),
        seconds={**standing.seconds, **compressed.seconds},
        rounds=tuple(standing.rounds),
        not_measured=why_not,
    )
    return outcome if device is None else _measured(loop, prepared, device, target, standing, outcome)


def _best(rounds: Sequence[Round]) -> int:
    """Returns the round that uses the target best: the slowest within it, or else the fastest."""
    order = sorted(range(len(rounds)), key=lambda at: rounds[at].measured_ms)
    met = [at for at in order if rounds[at].met]
    return met[-1] if met else order[0]


def _measured(
    loop: Loop, prepared: Prepared, device: Target, target: float, standing: _Standing, outcome: Outcome
) -> Outcome:
    """Adds what the device says of the exported network, and of dense and compressed in turns."""
    memo = prepared.memo
    file = _exported(prepared, device, outcome)
    dense_ms = memo.number("dense ms", lambda: device.file_ms(device.dense))
    final_ms = memo.number(f"file ms {outcome.hash}", lambda: device.file_ms(file))
    comparison = memo.record(
        f"comparison {outcome.hash}",
        Comparison,
        lambda: device.compare(file, preset=loop.preset, progress=loop.progress),
    )
    met = final_ms <= (1 + CLOSE) * target
    last = Round(
        number=len(standing.rounds) + 1,
        limit_ms=target,
        predicted_ms=standing.rounds[_best(standing.rounds)].predicted_ms,
        measured_ms=final_ms,
        file="exported",
        met=met,
    )
    reason = None if met else _unmet(target, final_ms, standing)
    return replace(
        outcome,
        met=met,
        reason=reason,
        rounds=(*outcome.rounds, last),
        dense_ms=dense_ms,
        measured_ms=final_ms,
        comparison=comparison,
    )


def _unmet(target: float, final_ms: float, standing: _Standing) -> str:
    why = standing.reason or f"{len(standing.rounds)} rounds were not enough; give more with --rounds"
    over = f"{final_ms / target - 1:.1%}".replace("%", " %")
    return f"the device takes {final_ms:.4g} ms, {over} more than the {target:.4g} asked for: {why}"


def _exported(prepared: Prepared, device: Target, outcome: Outcome) -> Path:
    folder = prepared.memo.directory
    assert folder is not None
    file = folder / f"compressed-{outcome.hash}{device.dense.suffix}"
    if not file.is_file():
        part = folder / f"part{file.suffix}"
        device.write(outcome.compressed.module, part)
        part.replace(file)
    return file


def limit_for_drop(
    loop: Loop, prepared: Prepared, metric: Metric, max_drop: float, span: tuple[float, float]
) -> float:
    """Returns the least cost at which repaired networks lose at most so much on the selection images.

    Accuracy where the images have labels, otherwise how often the answer is another than the dense model's.

    Raises:
        BudgetError: even hardly compressed networks lose more.
    """
    low, high = span
    found: float | None = None
    for _ in range(DROP_STEPS):
        limit = (low * high) ** 0.5
        choices = prepared.selection.select(prepared.problem(metric, limit))
        drop = prepared.memo.number(f"drop {plan_hash(choices)}", partial(_drop, loop, prepared, choices))
        if drop <= max_drop:
            found = high = limit
        else:
            low = limit
    if found is None:
        raise BudgetError(
            f"--max-drop {max_drop:g}: plans that save as little as {1 - high / span[1]:.0%} lose more on "
            "the selection images; allow more, or recover accuracy by training"
        )
    return found


def _drop(loop: Loop, prepared: Prepared, choices: Choices) -> float:
    network = realise_once(prepared, choices, loop.progress).module
    split = None if loop.material.splits is None else loop.material.splits.selection
    if split is not None and len(split) and split.images.labels() is not None:
        size = batch_size(loop.material.loaded.ref.input_shape)
        tops = [
            accuracy(one, split, size=size, progress=loop.progress, what="selection").top1
            for one in (prepared.setting.model, network)
        ]
        return float(tops[0] - tops[1])
    batches = prepared.setting.selection or prepared.setting.calibration
    dense, found = (log_probabilities(one, batches).argmax(1) for one in (prepared.setting.model, network))
    return 100 * float((dense != found).float().mean())
