"""Corrects a plan by the true loss: predicted errors add up, real ones do not quite.

Two layers trade: one takes its next cheaper option, another its next better one, within the budget.
A trade is kept when the loss on real images falls. The trades that look best by prediction go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgecompress.core.progress import Progress
from edgecompress.core.types import Candidate
from edgecompress.search.contract import Choices, Options, Problem

Loss = Callable[[Choices], float]


@dataclass(frozen=True)
class Step:
    """One layer at its next option up or down its own front."""

    name: str
    candidate: Candidate | None
    cost: float
    """Change of cost."""
    error: float
    """Change of predicted error."""


@dataclass(frozen=True)
class Improvement:
    """Where a local search ended."""

    choices: Choices
    loss_before: float
    loss_after: float
    evaluations: int
    trades: int


def improve(
    problem: Problem, choices: Choices, loss: Loss, *, max_evaluations: int, progress: Progress
) -> Improvement:
    """Trades between pairs of layers until none of the promising ones helps or the evaluations are spent."""
    ladders = {o.layer.name: _ladder(problem, o) for o in problem.options}
    before = best = loss(choices)
    trades, tried = 0, set()
    ticks = iter(progress.track(range(max_evaluations), "local search"))
    evaluations = 0
    while evaluations < max_evaluations:
        trade = next((t for t in _trades(problem, ladders, choices) if _key(t) not in tried), None)
        if trade is None:
            break
        tried.add(_key(trade))
        evaluations += next(ticks, None) is not None
        attempt = _apply(choices, trade)
        found = loss(attempt)
        if found < best:
            choices, best, trades = attempt, found, trades + 1
    for _ in ticks:
        break
    return Improvement(choices, before, best, evaluations, trades)


def _key(trade: tuple[Step, Step]) -> tuple[tuple[str, Candidate | None], ...]:
    return tuple((step.name, step.candidate) for step in trade)


Rung = tuple[float, float, Candidate | None]
"""Cost, predicted error and candidate; None is the dense layer."""


def _ladder(problem: Problem, options: Options) -> list[Rung]:
    """Returns a layer's undominated options, cheapest first."""
    rungs: list[Rung] = [(problem.dense_cost(options.layer), 0.0, None)]
    rungs += [(problem.cost(c), e, c) for c, e in zip(options.candidates, options.errors, strict=True)]
    kept: list[Rung] = []
    for rung in sorted(rungs, key=lambda r: (r[0], r[1])):
        if not kept or rung[1] < kept[-1][1]:
            kept.append(rung)
    return kept


def _trades(
    problem: Problem, ladders: dict[str, list[Rung]], choices: Choices
) -> Iterator[tuple[Step, Step]]:
    """Yields affordable pairs of (step down, step up), least predicted harm first."""
    slack = problem.limit - problem.total(choices)
    down = [s for name, ladder in ladders.items() for s in _steps(name, ladder, choices, -1)]
    up = [s for name, ladder in ladders.items() for s in _steps(name, ladder, choices, +1)]
    pairs = [(d, u) for d in down for u in up if d.name != u.name and d.cost + u.cost <= slack]
    yield from sorted(pairs, key=lambda p: p[0].error + p[1].error)


def _steps(name: str, ladder: list[Rung], choices: Choices, direction: int) -> Iterator[Step]:
    current = choices.get(name)
    here = next((i for i, rung in enumerate(ladder) if rung[2] == current), None)
    if here is None:
        return
    stride = max(1, len(ladder) // 20)  # a step that can be seen: about 5 % of the ladder
    for reach in (stride, 3 * stride):
        there = here + direction * reach
        if 0 <= there < len(ladder):
            cost, error, candidate = ladder[there]
            yield Step(name, candidate, cost - ladder[here][0], error - ladder[here][1])


def _apply(choices: Choices, trade: tuple[Step, Step]) -> Choices:
    changed = dict(choices)
    for step in trade:
        changed.pop(step.name, None)
        if step.candidate is not None:
            changed[step.name] = step.candidate
    return changed
