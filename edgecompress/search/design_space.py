"""Makes the space of a gradient search smaller before it starts, from costs and predicted errors alone.

SVD-NAS keeps a grid of costs, and drops candidates that lose accuracy on some hundred images, one
evaluation each. Here the predicted error takes the place of those evaluations, costs are in the unit of
the problem, and families that are nowhere best are left out: ranks cost a mixture nothing, families do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgecompress.core.types import Candidate
from edgecompress.search.contract import Choices, Options, Problem

Floats = NDArray[np.float64]
Grid = tuple[float, float, float]
"""First, last and step of shares of the dense layer's cost; the last is included."""

LEAST_GAIN = 0.02
"""What a further family must lower the error by, on average over costs, as a share."""
_LEVELS = np.linspace(0.05, 1.0, 20)


def prune(
    problem: Problem,
    *,
    gamma: Grid | None = None,
    tau: float | None = None,
    max_families: int | None = None,
    least_candidates: int = 100,
    keep: Choices | None = None,
) -> Problem:
    """Returns the problem with the candidates a gradient search should see; those of `keep` stay.

    `gamma`: of every family, the best candidate within each cost of the grid.
    `tau`: candidates whose predicted error is at most this.
    `max_families`: the families that together give the least error at all costs, no more of them than
    help, but as many as it takes for `least_candidates`.
    Candidates that cost no less than their layer are always dropped.
    """
    kept = keep or {}
    options = tuple(
        _pruned(o, problem, kept.get(o.layer.name), gamma, tau, max_families, least_candidates)
        for o in problem.options
    )
    return dataclasses.replace(problem, options=options)


def _pruned(
    options: Options,
    problem: Problem,
    keep: Candidate | None,
    gamma: Grid | None,
    tau: float | None,
    max_families: int | None,
    least_candidates: int,
) -> Options:
    shares = np.array([problem.cost(c) for c in options.candidates]) / problem.dense_cost(options.layer)
    errors = np.array(options.errors) if options.errors else None
    chosen = [i for i in range(len(shares)) if shares[i] < 1]
    if tau is not None and errors is not None:
        chosen = [i for i in chosen if errors[i] <= tau]
    if gamma is not None:
        chosen = _on_grid(options, chosen, shares, errors, gamma)
    if errors is not None:
        chosen = _few_explicit(options, chosen, shares, errors)
        groups = _groups(options, chosen)
        chosen = _best_families(groups, shares, errors, max_families or len(groups), least_candidates)
    chosen = sorted({*chosen, *(i for i, c in enumerate(options.candidates) if c == keep)})
    found = tuple(options.errors[i] for i in chosen) if options.errors else ()
    return Options(options.layer, tuple(options.candidates[i] for i in chosen), found)


def _groups(options: Options, chosen: Sequence[int]) -> dict[tuple[str, str], list[int]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for i in chosen:
        candidate = options.candidates[i]
        groups.setdefault((candidate.method, candidate.family), []).append(i)
    return groups


def _on_grid(
    options: Options, chosen: Sequence[int], shares: Floats, errors: Floats | None, gamma: Grid
) -> list[int]:
    """Returns for each family and each cost the candidate of least error, else of most ranks."""
    low, high, step = gamma
    grid = low + step * np.arange(int((high - low) / step + 1e-9) + 1)
    kept: set[int] = set()
    for group in _groups(options, chosen).values():
        for bound in grid:
            within = [i for i in group if shares[i] <= bound * (1 + 1e-9)]
            if within:
                kept.add(min(within, key=lambda i: _worth(options, errors, i)))
    return sorted(kept)


def _worth(options: Options, errors: Floats | None, i: int) -> float:
    return float(-sum(options.candidates[i].ranks) if errors is None else errors[i])


def _few_explicit(options: Options, chosen: Sequence[int], shares: Floats, errors: Floats) -> list[int]:
    """Drops what has no ranks to share a factorisation and is beaten: each would cost a whole kernel."""

    def beaten(i: int) -> bool:
        return any(shares[j] <= shares[i] and errors[j] < errors[i] for j in chosen)

    return [i for i in chosen if options.candidates[i].method == "lowrank" or not beaten(i)]


def _best_families(
    groups: Mapping[tuple[str, str], list[int]],
    shares: Floats,
    errors: Floats,
    max_families: int,
    least_candidates: int,
) -> list[int]:
    """Adds the family that lowers the errors most, again and again."""
    logs = {name: _log_errors(group, shares, errors) for name, group in groups.items()}
    best = np.full(len(_LEVELS), np.log(errors.max() + 1e-30) if len(errors) else 0.0)
    kept: list[int] = []
    count = 0
    while logs:
        name = min(logs, key=lambda one: float(np.minimum(best, logs[one]).sum()))
        better = np.minimum(best, logs.pop(name))
        helps = count == 0 or float((best - better).mean()) > LEAST_GAIN
        if (count >= max_families or not helps) and len(kept) >= least_candidates:
            break
        kept, best, count = kept + groups[name], better, count + 1
    return sorted(kept)


def _log_errors(group: Sequence[int], shares: Floats, errors: Floats) -> Floats:
    """Returns the log of the least error within each level of cost."""
    found = np.full(len(_LEVELS), np.inf)
    for i in group:
        found = np.where(shares[i] <= _LEVELS, np.minimum(found, errors[i]), found)
    return np.asarray(np.log(found + 1e-30))
