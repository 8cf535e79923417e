"""Two low-rank pairs side by side, outputs added (SVD-NAS, two branches).

The branches belong to different families: two of one family are that family with the ranks added. They
are found by turns, each on what the other leaves over; every turn lowers the error in the Frobenius
norm, so this is no worse than the greedy residual of the paper.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from edgecompress.core.costs import chain_macs, op_macs
from edgecompress.core.types import Block, Candidate, Layer
from edgecompress.methods.contract import Fill, Method, saves, single_candidate
from edgecompress.methods.lowrank import split
from edgecompress.nets.chains import Kernels
from edgecompress.nets.families import (
    Family,
    families_of,
    family_named,
    fold,
    max_rank,
    pair_ops,
    to_kernel,
)
from edgecompress.nets.metric import LayerMetric

SHORTLIST = (Family("S4"), Family("S2"), Family("S2T"), Family("S5"))
SHARES = (0.15, 0.3, 0.45)
"""Of the dense layer's MACs, per branch."""
ROUNDS = 3


def candidates(layer: Layer) -> Iterator[Candidate]:
    """Yields pairs of families and shares; nothing for 1 x 1 layers, where the families coincide."""
    offered = [family for family in SHORTLIST if family in families_of(layer.op)]
    for pair in itertools.combinations(offered, 2):
        seen = set()
        for shares in itertools.product(SHARES, repeat=2):
            ranks = tuple(_rank(family, layer, share) for family, share in zip(pair, shares, strict=True))
            candidate = branch_candidate(layer, pair, ranks)
            if ranks not in seen and saves(candidate, layer):
                seen.add(ranks)
                yield candidate


def branch_candidate(layer: Layer, pair: tuple[Family, Family], ranks: tuple[int, ...]) -> Candidate:
    """Returns the candidate with these two branches; the bias is on the first."""
    without_bias = layer.op.model_copy(update={"bias": False})
    block = Block(branches=(pair_ops(pair[0], layer.op, ranks[0]), pair_ops(pair[1], without_bias, ranks[1])))
    name = "+".join(family.name for family in pair)
    return single_candidate(layer, block, method="branches", family=name, ranks=ranks)


def _rank(family: Family, layer: Layer, share: float) -> int:
    per_rank = chain_macs(pair_ops(family, layer.op, 1), layer.in_size)
    rank = int(share * op_macs(layer.op, layer.in_size) / per_rank)
    return min(max(rank, 1), max_rank(family, layer.op))


def factorise(kernel: Tensor, layer: Layer, metric: LayerMetric) -> Fill:
    """Prepares the branches of a layer, found by turns; each candidate is solved once."""
    return _filling(kernel, layer, metric, ROUNDS)


def factorise_greedily(kernel: Tensor, layer: Layer, metric: LayerMetric) -> Fill:
    """Prepares the branches as the paper does: the first as if alone, the second on what it leaves over."""
    return _filling(kernel, layer, metric, 1)


def _filling(kernel: Tensor, layer: Layer, metric: LayerMetric, rounds: int) -> Fill:
    @functools.cache
    def fill(candidate: Candidate) -> Kernels:
        pair = tuple(family_named(name) for name in candidate.family.split("+"))
        parts: list[tuple[Tensor, Tensor]] = []
        approximations = [torch.zeros_like(kernel), torch.zeros_like(kernel)]
        for _ in range(rounds):
            parts = []
            for here, (family, rank) in enumerate(zip(pair, candidate.ranks, strict=True)):
                rest = kernel - approximations[1 - here]
                left, right = split(family, rest, layer.op, metric)
                left, right = left[..., :rank], right[:, :rank]
                approximations[here] = to_kernel(family, left @ right, layer.op)
                parts.append(fold(family, left, right, layer.op))
        return tuple(parts)

    return fill


METHOD = Method(
    "branches", "two low-rank pairs side by side, of different families (SVD-NAS)", candidates, factorise
)
