"""One candidate per layer, least total error for every total cost: the whole front in one sweep.

A multiple-choice knapsack. Layers are merged one after the other; of the partial sums only those are
kept that no other beats in both cost and error. While they are fewer than `MAX_STATES` the front is
exact. Beyond that they are thinned to the best of each of `MAX_STATES` slots of cost; costs stay true
sums, so a point of the front never costs more than it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

MAX_STATES = 8192


@dataclass(frozen=True)
class Front:
    """Points that no other beats, by rising cost and falling error."""

    costs: Floats
    errors: Floats
    _steps: tuple[tuple[Indices, Indices], ...]
    """For each layer: the state each state came from, and the item it took."""

    def within(self, limit: float) -> int | None:
        """Returns the best point that costs at most `limit`, or None."""
        index = int(np.searchsorted(self.costs, limit * (1 + 1e-12), side="right")) - 1
        return None if index < 0 else index

    def picks(self, point: int) -> list[int]:
        """Returns which item each layer takes at a point."""
        taken: list[int] = []
        for parents, items in reversed(self._steps):
            taken.append(int(items[point]))
            point = int(parents[point])
        return taken[::-1]


def sweep(costs: Sequence[Floats], errors: Sequence[Floats], *, max_states: int = MAX_STATES) -> Front:
    """Returns the front over all ways to take one item per layer."""
    total_cost, total_error = np.zeros(1), np.zeros(1)
    steps: list[tuple[Indices, Indices]] = []
    for cost, error in zip(costs, errors, strict=True):
        items = _undominated(cost, error)
        sums_cost = (total_cost[:, None] + cost[items]).ravel()
        sums_error = (total_error[:, None] + error[items]).ravel()
        kept = _thinned(sums_cost, sums_error, max_states)
        steps.append((kept // len(items), items[kept % len(items)]))
        total_cost, total_error = sums_cost[kept], sums_error[kept]
    return Front(total_cost, total_error, tuple(steps))


def _undominated(cost: Floats, error: Floats) -> Indices:
    """Returns the indices of the points no other beats, by rising cost."""
    order = np.lexsort((error, cost))
    best_before = np.concatenate(([np.inf], np.minimum.accumulate(error[order])[:-1]))
    return order[error[order] < best_before]


def _thinned(cost: Floats, error: Floats, max_states: int) -> Indices:
    kept = _undominated(cost, error)
    if len(kept) <= max_states:
        return kept
    low, high = cost[kept[0]], cost[kept[-1]]
    slot = np.floor((cost[kept] - low) / (high - low) * (max_states - 1))
    last_of_slot = np.append(np.flatnonzero(np.diff(slot)), len(kept) - 1)  # least error: it falls with cost
    chosen: Indices = kept[np.union1d([0], last_of_slot)]
    return chosen
