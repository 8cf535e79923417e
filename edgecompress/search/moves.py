"""What a local search may do to a plan next: small changes of one or two layers that keep the budget."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgecompress.core.types import Candidate
from edgecompress.search.contract import Choices, Options, Problem

STRIDES = 20
"""A step that can be seen: about one of so many parts of a ladder."""
REACHES = (1, 3)
"""Steps go so many strides up or down."""
SIDEWAYS = 1.5
"""Another family may be tried in a layer if its predicted error is at most so many times the present one."""


@dataclass(frozen=True)
class Rung:
    """An option of a layer; candidate None is the dense layer."""

    cost: float
    error: float
    candidate: Candidate | None


@dataclass(frozen=True)
class Step:
    """One layer at another option."""

    name: str
    candidate: Candidate | None
    cost: float
    """Change of cost."""
    error: float
    """Change of predicted error."""


Move = tuple[Step, ...]


@dataclass(frozen=True)
class Ladder:
    """A layer's options: those no other beats, cheapest first, and all of them by candidate."""

    name: str
    rungs: tuple[Rung, ...]
    every: Mapping[Candidate | None, Rung]


def ladders_of(problem: Problem) -> tuple[Ladder, ...]:
    """Returns the ladder of every layer, whatever the unit of cost."""
    return tuple(_ladder(problem, options) for options in problem.options)


def _ladder(problem: Problem, options: Options) -> Ladder:
    rungs = [Rung(problem.dense_cost(options.layer), 0.0, None)]
    rungs += [Rung(problem.cost(c), e, c) for c, e in zip(options.candidates, options.errors, strict=True)]
    kept: list[Rung] = []
    for rung in sorted(rungs, key=lambda r: (r.cost, r.error)):
        if not kept or rung.error < kept[-1].error:
            kept.append(rung)
    return Ladder(options.layer.name, tuple(kept), {rung.candidate: rung for rung in rungs})


def moves(problem: Problem, ladders: tuple[Ladder, ...], choices: Choices) -> Iterator[Move]:
    """Yields every affordable move: trades of two layers, steps into free budget, changes of family."""
    slack = problem.limit - problem.total(choices)
    steps = [s for ladder in ladders for s in _steps(ladder, choices.get(ladder.name))]
    down, up = [s for s in steps if s.cost < 0], [s for s in steps if s.cost > 0]
    yield from ((d, u) for d in down for u in up if d.name != u.name and d.cost + u.cost <= slack)
    yield from ((u,) for u in up if u.cost <= slack)
    for ladder in ladders:
        yield from ((s,) for s in _sideways(ladder, choices.get(ladder.name), slack))


def _steps(ladder: Ladder, current: Candidate | None) -> Iterator[Step]:
    """Yields the layer some strides up and down; a choice that is not on its ladder steps onto it."""
    here, costs = ladder.every[current], [rung.cost for rung in ladder.rungs]
    stride = max(1, len(costs) // STRIDES)
    below, above = bisect_left(costs, here.cost), bisect_right(costs, here.cost)
    for reach in REACHES:
        for there in (below - reach * stride, above - 1 + reach * stride):
            if 0 <= there < len(costs):
                yield _step(ladder.name, here, ladder.rungs[there])


def _sideways(ladder: Ladder, current: Candidate | None, slack: float) -> Iterator[Step]:
    """Yields the best affordable option of every other family where the prediction can hardly tell."""
    here = ladder.every[current]
    if current is None:
        return
    best: dict[str, Rung] = {}
    for rung in ladder.every.values():
        if rung.candidate is not None and rung.cost - here.cost <= slack:
            known = best.get(rung.candidate.family)
            if known is None or rung.error < known.error:
                best[rung.candidate.family] = rung
    for family, rung in best.items():
        if family != current.family and rung.error <= SIDEWAYS * here.error:
            yield _step(ladder.name, here, rung)


def _step(name: str, here: Rung, there: Rung) -> Step:
    return Step(name, there.candidate, there.cost - here.cost, there.error - here.error)


def applied(choices: Choices, move: Move) -> Choices:
    """Returns the plan after a move."""
    changed = dict(choices)
    for step in move:
        changed.pop(step.name, None)
        if step.candidate is not None:
            changed[step.name] = step.candidate
    return changed
