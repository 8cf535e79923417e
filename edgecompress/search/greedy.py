"""Ranks cut layer by layer, each time where the true loss is least afterwards.

This is the `iter_training` selection of LoRITa with a budget to stop at: in every round each layer is tried
with `grid` ranks fewer, and the one that does least harm keeps the cut. Where a cut would go below the limit,
the grid is halved, down to one rank, so that the plan ends within one rank of it. The paper trains for a
while whenever too much is lost; here nothing is trained before the plan is complete.

Reference: Zhang et al., Structure-Preserving Network Compression via Low-Rank Induced Training Through
Linear Layers Composition, 2024 (arXiv 2405.03089).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from edgecompress.core.progress import Progress
from edgecompress.core.types import Candidate
from edgecompress.methods import lowrank
from edgecompress.nets.families import Family, max_rank
from edgecompress.search.contract import Choices, Options, Problem
from edgecompress.search.knob import unreachable
from edgecompress.search.local import Loss
from edgecompress.search.spectra import check_offered, offered_families

GRIDS = 8
"""The first grid is about the largest rank over this: 8 for up to 64 channels, as in the paper."""


@dataclass(frozen=True)
class Cutting:
    """Where a search by cuts ended."""

    choices: Choices
    loss: float
    rounds: int
    evaluations: int


@dataclass
class _Standing:
    grid: int
    choices: Choices = field(default_factory=dict)
    loss: float = 0.0
    rounds: int = 0
    evaluations: int = 0


def cut_ranks(problem: Problem, loss: Loss, *, progress: Progress) -> Cutting:
    """Cuts ranks until the limit is met.

    Raises:
        BudgetError: it cannot be met.
        ConfigError: the candidates are all of other methods.
    """
    check_offered(problem, lowrank.METHOD.name)
    ladders = {one.layer.name: _ladder(problem, one) for one in problem.options}
    least = {name: rungs[-1] for name, rungs in ladders.items() if rungs}
    if problem.total({}) > problem.limit and problem.total(least) > problem.limit:
        raise unreachable(problem, problem.total(least))
    standing = _Standing(_first_grid(problem))
    for _ in progress.track(_rounds(problem, ladders, loss, standing), "cutting ranks"):
        pass
    return Cutting(standing.choices, standing.loss, standing.rounds, standing.evaluations)


def _ladder(problem: Problem, options: Options) -> tuple[Candidate, ...]:
    """Returns what a layer may become, from many ranks to one, in the channel family where it is offered."""
    offered = offered_families(options)
    if not offered:
        return ()
    family = Family("S4") if Family("S4") in offered else offered[0]
    ranks = range(max_rank(family, options.layer.op), 0, -1)
    rungs = (lowrank.pair_candidate(options.layer, family, rank) for rank in ranks)
    return tuple(one for one in rungs if problem.cost(one) < problem.dense_cost(options.layer))


def _first_grid(problem: Problem) -> int:
    largest = max((max_rank(Family("S4"), one.layer.op) for one in problem.options), default=1)
    return 1 << max(0, int(math.log2(max(1, largest // GRIDS))))


def _rounds(
    problem: Problem, ladders: Mapping[str, tuple[Candidate, ...]], loss: Loss, standing: _Standing
) -> Iterator[int]:
    """Makes cuts until the limit is met, and yields after each round."""
    while problem.total(standing.choices) > problem.limit:
        found = _best_cut(ladders, loss, standing)
        is_last = found is None or problem.total(found[0]) <= problem.limit
        if is_last and standing.grid > 1:
            standing.grid //= 2
        else:
            assert found is not None, "the smallest model is within the limit"
            standing.choices, standing.loss = found
        standing.rounds += 1
        yield standing.rounds


def _best_cut(
    ladders: Mapping[str, tuple[Candidate, ...]], loss: Loss, standing: _Standing
) -> tuple[Choices, float] | None:
    """Returns the plan with one layer cut that loses least, and its loss; None where none has the ranks."""
    best: tuple[Choices, float] | None = None
    for name, rungs in ladders.items():
        now = standing.choices.get(name)
        there = (-1 if now is None else rungs.index(now)) + standing.grid
        if there < len(rungs):
            attempt = {**standing.choices, name: rungs[there]}
            bar = math.inf if best is None else best[1]
            harm = loss(attempt, near=standing.choices, bar=bar)
            standing.evaluations += 1
            if best is None or harm < bar:
                best = attempt, harm
    return best
