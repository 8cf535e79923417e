"""Two layers in place of one: every family of the LR-space, every rank (SVD-NAS, one branch)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from edgecompress.core.types import Block, Candidate, Layer, Op
from edgecompress.methods.contract import Fill, Method, saves, single_candidate
from edgecompress.nets.chains import Kernels
from edgecompress.nets.factor_cache import FactorCache, fingerprint
from edgecompress.nets.families import (
    Family,
    families_of,
    family_named,
    fold,
    max_rank,
    pair_ops,
    to_matrices,
)
from edgecompress.nets.metric import (
    INPUT_DAMPING,
    OUTPUT_DAMPING,
    LayerMetric,
    diagonal_blocks,
    input_moment,
    whitener,
)


def pair_candidate(layer: Layer, family: Family, rank: int) -> Candidate:
    """Returns the candidate of that family and rank, whether it saves or not."""
    block = Block(branches=(pair_ops(family, layer.op, rank),))
    return single_candidate(layer, block, method="lowrank", family=family.name, ranks=(rank,))


def candidates(layer: Layer) -> Iterator[Candidate]:
    """Yields every family and every rank that saves something."""
    for family in families_of(layer.op):
        for rank in range(1, max_rank(family, layer.op) + 1):
            candidate = pair_candidate(layer, family, rank)
            if not saves(candidate, layer):
                break  # both costs grow with the rank
            yield candidate


_CACHE = FactorCache(max_bytes=128 << 20)
"""Building, searching and sweeping budgets ask for the same factorisations again and again."""


def factorise(kernel: Tensor, layer: Layer, metric: LayerMetric) -> Fill:
    """Prepares the factors of a layer; each family is decomposed once, when first asked for."""
    origin = (fingerprint(kernel), metric.fingerprint)

    def fill(candidate: Candidate) -> Kernels:
        family = family_named(candidate.family)
        key = (*origin, family.name)
        left, right = _CACHE.get(key, lambda: split(family, kernel, layer.op, metric))
        (rank,) = candidate.ranks
        return (fold(family, left[..., :rank], right[:, :rank], layer.op),)

    return fill


def split(family: Family, kernel: Tensor, op: Op, metric: LayerMetric) -> tuple[Tensor, Tensor]:
    """Returns factors (slices, rows, R) and (slices, R, columns), best first in the family's metric.

    Cutting both at r gives the best rank-r factors of every slice; singular values are shared evenly.
    """
    first, second = pair_ops(family, op, 1)
    matrices = to_matrices(family, kernel)
    columns = _input_whitener(first, op, metric)  # (slices or 1, columns, columns)
    rows = _output_whitener(second, metric)  # (slices or 1, f or f/g, f or f/g)
    white = matrices if columns is None else matrices @ columns
    white = white if rows is None else _on_channels(rows.mT, white)
    u, s, vh = torch.linalg.svd(white, full_matrices=False)
    left, right = u * s.sqrt()[:, None], s.sqrt()[..., None] * vh
    if columns is not None:
        right = torch.linalg.solve_triangular(columns, right, upper=False, left=False)
    if rows is not None:
        left = _solve_on_channels(rows.mT, left)
    return left, right


def _input_whitener(first: Op, op: Op, metric: LayerMetric) -> Tensor | None:
    if metric.input is None:
        return None
    return whitener(input_moment(first, metric.input, op), INPUT_DAMPING)


def _output_whitener(second: Op, metric: LayerMetric) -> Tensor | None:
    if metric.output is None:
        return None
    return whitener(diagonal_blocks(metric.output, second.groups), OUTPUT_DAMPING)


def _on_channels(matrix: Tensor, rows: Tensor) -> Tensor:
    """Applies a matrix to the channel part of rows = channels x taps."""
    grouped = rows.reshape(len(rows), matrix.shape[-1], -1)
    return (matrix @ grouped).reshape(rows.shape)


def _solve_on_channels(matrix: Tensor, rows: Tensor) -> Tensor:
    grouped = rows.reshape(len(rows), matrix.shape[-1], -1)
    solved: Tensor = torch.linalg.solve_triangular(matrix, grouped, upper=True)
    return solved.reshape(rows.shape)


METHOD = Method("lowrank", "two layers by SVD: spatial, input-sliced, output-sliced", candidates, factorise)
