"""A second low-rank pair beside the first, on what the first leaves over (SVD-NAS, B2).

After a search with one branch, Algorithm S.1 of the paper takes ranks worth a fifth of the dense layer from
each chosen pair and searches a second one for the residual. Here such pairs join the candidates there were,
so one branch alone stays possible, and what one layer saves another may use. The second branch is of another
family: two of one family are that family with the ranks added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from edgecompress.core.costs import chain_macs, op_macs
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.types import Candidate, Layer
from edgecompress.methods import branches
from edgecompress.methods.branches import SHORTLIST, branch_candidate
from edgecompress.methods.contract import Method, saves
from edgecompress.nets.families import Family, families_of, family_named, max_rank, pair_ops
from edgecompress.nets.metric import LayerMetric
from edgecompress.search.contract import Choices, Options, Problem
from edgecompress.search.sensitivity import predicted_errors

Mode = Literal["alternating", "greedy"]

RELAXATION = 0.2
"""Share of the dense layer's MACs taken from the first branch."""
SHARES = tuple(0.05 * step for step in range(1, 8))
"""Of the dense layer's MACs, for the second branch; with both below the dense layer."""


def pair_method(mode: Mode) -> Method:
    """Returns the method that fills pairs: by turns, which plans are rebuilt with, or as the paper does."""
    found = branches.METHOD
    return (
        found if mode == "alternating" else dataclasses.replace(found, factorise=branches.factorise_greedily)
    )


def add_second_branches(
    problem: Problem,
    choices: Choices,
    metrics: Mapping[str, LayerMetric],
    *,
    mode: Mode = "alternating",
    max_pairs: int = 8,
    progress: Progress = NO_PROGRESS,
) -> Problem:
    """Returns the problem with pairs around the chosen candidates, at most `max_pairs` per layer.

    Kept are pairs that no other candidate of their layer beats in cost and predicted error.
    """
    extra = [Options(o.layer, tuple(_pairs(o.layer, choices.get(o.layer.name)))) for o in problem.options]
    judged = predicted_errors(extra, {"branches": pair_method(mode)}, problem.kernels, metrics, progress)
    pairs = zip(problem.options, judged, strict=True)
    return dataclasses.replace(problem, options=tuple(_joined(o, e, problem, max_pairs) for o, e in pairs))


def relaxed_rank(layer: Layer, family: Family, rank: int) -> int:
    """Returns the rank of a first branch after a fifth of the dense layer's MACs are taken from it."""
    per_rank = chain_macs(pair_ops(family, layer.op, 1), layer.in_size)
    return max(1, rank - max(1, int(RELAXATION * op_macs(layer.op, layer.in_size) / per_rank)))


def _pairs(layer: Layer, choice: Candidate | None) -> Iterator[Candidate]:
    if choice is None or choice.method != "lowrank":
        return
    first = family_named(choice.family)
    kept = relaxed_rank(layer, first, choice.ranks[0])
    for second in SHORTLIST:
        if second != first and second in families_of(layer.op):
            per_rank = chain_macs(pair_ops(second, layer.op, 1), layer.in_size)
            ranks = {int(share * op_macs(layer.op, layer.in_size) / per_rank) for share in SHARES}
            for rank in sorted(ranks & set(range(1, max_rank(second, layer.op) + 1))):
                candidate = branch_candidate(layer, (first, second), (kept, rank))
                if saves(candidate, layer):
                    yield candidate


def _joined(options: Options, extra: Options, problem: Problem, max_pairs: int) -> Options:
    if not extra.candidates:
        return options
    candidates, errors = options.candidates + extra.candidates, options.errors + extra.errors
    costs = np.array([problem.cost(c) for c in candidates])
    own = range(len(options.candidates), len(candidates))
    found = np.array(errors)
    unbeaten = [i for i in own if not bool(((costs <= costs[i]) & (found < found[i])).any())]
    kept = [*range(len(options.candidates)), *sorted(sorted(unbeaten, key=lambda i: errors[i])[:max_pairs])]
    return Options(options.layer, tuple(candidates[i] for i in kept), tuple(errors[i] for i in kept))
