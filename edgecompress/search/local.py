"""Corrects a plan by the true loss: predicted errors add up, real ones do not quite.

Two layers trade (one takes a cheaper option, another a better one), a layer uses free budget, or a layer
changes its family. A move is kept when the loss on real images falls. Which move is tried next depends on
the predicted errors and on how moves of the same layers fared: only on whether the loss fell, never on by
how much. So a search that is repeated with the same answers takes the same path, and an evaluation may stop
as soon as it is certain that the loss does not fall.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from edgecompress.core.progress import Progress
from edgecompress.core.types import Candidate
from edgecompress.search.contract import Choices, Problem
from edgecompress.search.moves import Ladder, Move, applied, ladders_of, moves

LEARNING = 1.5
"""Factor by which a layer's predictions are trusted less after a move that failed, more after a success."""


class Loss(Protocol):
    """The true loss of plans."""

    def __call__(self, choices: Choices, /, *, near: Choices, bar: float) -> float:
        """Returns the loss; where it is at least `bar`, any number from `bar` up to the loss.

        `near` is a plan that differs in few layers: the best so far. The result does not depend on it. A
        caller that remembers losses must do so by plan and bar.
        """


@dataclass(frozen=True)
class Improvement:
    """Where a local search ended."""

    choices: Choices
    loss_before: float
    loss_after: float
    evaluations: int
    trades: int
    """Moves that were kept."""


@dataclass(frozen=True)
class Trust:
    """Factors for the predicted harm and gain of each layer, learnt from moves that were tried."""

    harm: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: 1.0))
    gain: dict[str, float] = field(default_factory=lambda: defaultdict(lambda: 1.0))

    def expected(self, move: Move) -> float:
        """Returns the corrected change of error of a move."""
        return sum(s.error * (self.harm if s.error > 0 else self.gain)[s.name] for s in move)

    def learn_(self, move: Move, *, fell: bool) -> None:
        """Takes note of a move that was tried."""
        for step in move:
            if step.error > 0:
                self.harm[step.name] *= 1 / LEARNING if fell else LEARNING
            else:
                self.gain[step.name] *= LEARNING if fell else 1 / LEARNING


def improve(
    problem: Problem, choices: Choices, loss: Loss, *, max_evaluations: int, progress: Progress
) -> Improvement:
    """Makes moves until none of them helps or the evaluations are spent."""
    ladders, trust = ladders_of(problem), Trust()
    before = best = loss(choices, near=choices, bar=math.inf)
    kept, tried = 0, set[Key]()
    ticks = iter(progress.track(range(max_evaluations), "local search"))
    evaluations = 0
    while evaluations < max_evaluations:
        move = _next_move(problem, ladders, choices, tried, trust)
        if move is None:
            break
        tried.add(_key(move))
        evaluations += next(ticks, None) is not None
        attempt = applied(choices, move)
        found = loss(attempt, near=choices, bar=best)
        trust.learn_(move, fell=found < best)
        if found < best:
            choices, best, kept = attempt, found, kept + 1
    _close(ticks)
    return Improvement(choices, before, best, evaluations, kept)


Key = tuple[tuple[str, Candidate | None], ...]


def _key(move: Move) -> Key:
    return tuple((step.name, step.candidate) for step in move)


def _next_move(
    problem: Problem, ladders: tuple[Ladder, ...], choices: Choices, tried: set[Key], trust: Trust
) -> Move | None:
    """Returns the most promising move that was not tried; of equals the first."""
    new = (move for move in moves(problem, ladders, choices) if _key(move) not in tried)
    return min(new, key=trust.expected, default=None)


def _close(ticks: Iterator[int]) -> None:
    """Ends a progress bar before its time."""
    for _ in ticks:
        break
