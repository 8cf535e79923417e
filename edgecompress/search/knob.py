"""One knob, turned until the model meets its limit: what most rank rules have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgecompress.core.types import Candidate, Layer
from edgecompress.errors import BudgetError
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.families import Family
from edgecompress.search.contract import Choices, Problem

MS_STEP = 1e-4
"""To this many milliseconds a reachable latency is rounded up in messages."""


@dataclass(frozen=True)
class Ladder:
    """What each further rank of a layer is worth to a rule."""

    layer: Layer
    family: Family
    worth: Tensor
    """(max_rank,), never rising."""

    def rank(self, threshold: float, *, rank_min: int = 1) -> int:
        """Returns how many ranks are worth more than the threshold, `rank_min` at least where there are."""
        return max(int((self.worth > threshold).sum()), min(rank_min, len(self.worth)))


def meet_by_threshold(problem: Problem, ladders: Sequence[Ladder], *, rank_min: int = 1) -> Choices:
    """Keeps the ranks worth more than one threshold, the lowest that the limit allows.

    Every threshold that makes a difference is among the worths themselves, so the search is exact.

    Raises:
        BudgetError: even `rank_min` everywhere is too much.
    """

    def choose(threshold: float) -> Choices:
        ranks = [(ladder, ladder.rank(threshold, rank_min=rank_min)) for ladder in ladders]
        return worthwhile(problem, (pair_candidate(on.layer, on.family, rank) for on, rank in ranks))

    worths = torch.cat([ladder.worth for ladder in ladders]) if ladders else torch.empty(0)
    thresholds = torch.unique(worths).flip(0).tolist()  # from few ranks to many
    return meet_limit(problem, choose, [*thresholds, -math.inf])


def worthwhile(problem: Problem, candidates: Iterable[Candidate]) -> Choices:
    """Returns the candidates that cost less than the layer they replace; the others stay dense."""
    dense_costs = {o.layer.name: problem.dense_cost(o.layer) for o in problem.options}
    return {c.layers[0]: c for c in candidates if problem.cost(c) < dense_costs[c.layers[0]]}


def meet_limit(problem: Problem, choose: Callable[[float], Choices], knobs: Sequence[float]) -> Choices:
    """Returns `choose` at the last of the knobs that is within the limit; a dense model that is, stays.

    `knobs` go from the smallest model to the largest. A cost that rises with them all the way makes
    the bisection exact; one that wavers (a latency) still gives a model within the limit.

    Raises:
        BudgetError: the smallest model is too large.
    """
    if problem.total({}) <= problem.limit:
        return {}
    best = choose(knobs[0])
    if problem.total(best) > problem.limit:
        raise unreachable(problem, problem.total(best))
    low, high = 0, len(knobs)
    while high - low > 1:
        middle = (low + high) // 2
        choices = choose(knobs[middle])
        if problem.total(choices) <= problem.limit:
            low, best = middle, choices
        else:
            high = middle
    return best


def unreachable(problem: Problem, nearest: float) -> BudgetError:
    """Returns the error for a limit that cannot be met; it names the nearest budget that can, to type."""
    step = MS_STEP if problem.metric == "ms" else 1
    return BudgetError(
        f"budget {problem.metric}={problem.limit:.12g}: cannot be met; "
        f"the nearest reachable is {problem.metric}={math.ceil(nearest / step) * step:.12g}",
        nearest=nearest,
    )
