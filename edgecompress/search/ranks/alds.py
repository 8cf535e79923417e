"""ALDS: how finely to slice each layer and which rank, so that the worst layer suffers least.

The error of a layer cut into g slices of rank r is the largest discarded singular value of any slice
over the norm of the whole kernel,

    eps(g, r) = max_slices s_{r+1} / |W|_2.

For given slicings one eps for all layers settles the ranks, and the smallest that fits the rule's own
budget is found by bisection. In turn each layer, at the cost it has, moves to the slicing of least
eps. Neither step can raise the largest eps. Several starts, the best wins.

The published rule budgets parameters. Under another budget (MACs) its parameter budget is tuned until
the model meets that one; `alds-macs` counts MACs inside as well.

Reference: Liebenwein et al., Compressing Neural Networks: Towards Determining the Optimal Layer-wise
Decomposition, NeurIPS 2021.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgecompress.core.types import Layer, Metric
from edgecompress.methods import lowrank
from edgecompress.nets.families import Family
from edgecompress.search.contract import (
    Choices,
    Options,
    Problem,
    Selection,
    dense_shape_cost,
    shape_cost,
)
from edgecompress.search.knob import meet_limit, worthwhile
from edgecompress.search.spectra import check_offered, offered_families, singular_values

STARTS = 15
FIRST_SLICES = (3, 5, 7, 9)
"""The first starts cut every layer as near to these as its divisors allow; the others at random."""
ROUNDS = 4


@dataclass(frozen=True)
class Slicing:
    """One family of a layer as the rule sees it."""

    family: Family
    errors: NDArray[np.float64]
    """eps by rank 0, 1, ..., max_rank: never rising, 0 at the end."""
    rank_cost: int

    def rank(self, error: float) -> int:
        """Returns the least rank, 1 at least, with no more than this error."""
        return max(1, int(np.searchsorted(-self.errors, -error)))


@dataclass(frozen=True)
class Row:
    """One layer with all its slicings."""

    layer: Layer
    dense_cost: int
    slicings: tuple[Slicing, ...]


@dataclass(frozen=True)
class Fit:
    """Slicing and rank of every layer, and the largest error among them."""

    picks: tuple[int, ...]
    ranks: tuple[int, ...]
    error: float


def select(problem: Problem, *, metric: Metric) -> Choices:
    """Minimises the largest error under a budget in `metric` that makes the model meet its limit."""
    check_offered(problem, lowrank.METHOD.name)
    rows = [row_of(o, problem, metric) for o in problem.options if offered_families(o)]

    def choose(budget: float) -> Choices:
        fit = solve(rows, budget)
        picked = [(row.layer, row.slicings[pick].family) for row, pick in zip(rows, fit.picks, strict=True)]
        pairs = zip(picked, fit.ranks, strict=True)
        return worthwhile(problem, (lowrank.pair_candidate(*place, rank) for place, rank in pairs))

    return meet_limit(problem, choose, range(least_cost(rows), sum(row.dense_cost for row in rows) + 1))


def row_of(options: Options, problem: Problem, metric: Metric) -> Row:
    """Tabulates the errors of a layer over the S4 families it is offered; without any, over its first."""
    layer, offered = options.layer, offered_families(options)
    kernel = problem.kernels[layer.name].double()
    norm = max(float(singular_values(Family("S4"), kernel)[0, 0]), np.finfo(np.float64).tiny)
    cost, dense = shape_cost(metric), dense_shape_cost(metric)(layer)

    def slicing(family: Family) -> Slicing:
        worst = singular_values(family, kernel).amax(0) / norm
        one, two = (cost(lowrank.pair_candidate(layer, family, rank)) for rank in (1, 2))
        return Slicing(family, np.append(worst.numpy(), 0.0), int(two - one))

    bias = layer.op.outputs if layer.op.bias and metric == "params" else 0  # kept whatever the rank
    sliced = [family for family in offered if family.kind == "S4"] or offered[:1]
    return Row(layer, int(dense) - bias, tuple(slicing(family) for family in sliced))


def least_cost(rows: Sequence[Row]) -> int:
    """Returns the smallest budget that can be met."""
    return sum(min(row.dense_cost, *(slicing.rank_cost for slicing in row.slicings)) for row in rows)


def solve(rows: Sequence[Row], budget: float) -> Fit:
    """Returns the best fit of all starts; `budget` is at least `least_cost`."""
    fits = [improved(rows, picks, budget) for picks in starts(rows)]
    found = [fit for fit in fits if fit is not None]
    if not found:  # so tight that it takes the cheapest slicings
        cheapest = improved(rows, cheapest_picks(rows), budget)
        assert cheapest is not None, "the budget is below the least cost"
        return cheapest
    return min(found, key=lambda fit: fit.error)


def starts(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """Returns the slicings to begin with, the same every time."""
    rng = random.Random(0)
    near = [tuple(_nearest(row, slices) for row in rows) for slices in FIRST_SLICES]
    drawn = STARTS - len(FIRST_SLICES)
    return near + [tuple(rng.randrange(len(row.slicings)) for row in rows) for _ in range(drawn)]


def _nearest(row: Row, slices: int) -> int:
    return min(range(len(row.slicings)), key=lambda i: abs(row.slicings[i].family.slices - slices))


def cheapest_picks(rows: Sequence[Row]) -> tuple[int, ...]:
    """Returns the slicing of each layer whose first rank costs least."""
    return tuple(min(range(len(row.slicings)), key=lambda i: row.slicings[i].rank_cost) for row in rows)


def improved(rows: Sequence[Row], picks: tuple[int, ...], budget: float) -> Fit | None:
    """Alternates ranks and slicings from one start; None if the start cannot meet the budget."""
    fit = fit_ranks(rows, picks, budget)
    for _ in range(ROUNDS):
        if fit is None:
            return None
        fit = fit_ranks(rows, _reslice(rows, fit), budget)
    return fit


def fit_ranks(rows: Sequence[Row], picks: tuple[int, ...], budget: float) -> Fit | None:
    """Returns the ranks of the least common error within the budget, or None if rank 1 is too much."""
    slicings = [row.slicings[pick] for row, pick in zip(rows, picks, strict=True)]

    def cost(error: float) -> int:
        pairs = zip(rows, slicings, strict=True)
        return sum(min(row.dense_cost, s.rank(error) * s.rank_cost) for row, s in pairs)

    levels = np.unique(np.concatenate([[0.0], *(slicing.errors for slicing in slicings)]))
    if cost(levels[-1]) > budget:
        return None
    low, high = -1, len(levels) - 1  # the error at `high` fits, that at `low` does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cost(levels[middle]) <= budget else (middle, high)
    ranks = tuple(slicing.rank(levels[high]) for slicing in slicings)
    return Fit(picks, ranks, _largest_error(rows, slicings, ranks))


def _largest_error(rows: Sequence[Row], slicings: Sequence[Slicing], ranks: Sequence[int]) -> float:
    """Returns the largest error; a layer whose factors are not smaller stays dense and has none."""
    parts = zip(rows, slicings, ranks, strict=True)
    errors = [float(s.errors[rank]) for row, s, rank in parts if rank * s.rank_cost < row.dense_cost]
    return max(errors, default=0.0)


def _reslice(rows: Sequence[Row], fit: Fit) -> tuple[int, ...]:
    """Returns, for every layer, the slicing of least error at the cost it has now."""
    return tuple(
        _best_slicing(row, min(row.dense_cost, rank * row.slicings[pick].rank_cost), pick)
        for row, pick, rank in zip(rows, fit.picks, fit.ranks, strict=True)
    )


def _best_slicing(row: Row, cost: int, otherwise: int) -> int:
    def error(index: int) -> float:
        slicing = row.slicings[index]
        rank = min(cost // slicing.rank_cost, len(slicing.errors) - 1)
        return float(slicing.errors[rank])

    possible = [i for i, slicing in enumerate(row.slicings) if slicing.rank_cost <= cost]
    return min(possible, key=error, default=otherwise)


BY_PARAMS = Selection(
    "alds",
    "least largest spectral error over sliced layers, by parameters (ALDS)",
    functools.partial(select, metric="params"),
)
BY_MACS = Selection("alds-macs", "the same, by MACs", functools.partial(select, metric="macs"))
