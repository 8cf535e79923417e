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
    left, right = _even_factors(white)
    if columns is not None:
        right = _solve_on_columns(columns, right)
    if rows is not None:
        left = _solve_on_channels(rows.mT, left)
    return left, right


LARGE_SIDE = 256
"""Matrices with a longer side take the way over their Gram matrix: five times as fast, and what it gets wrong
is of the order of 1e-8 of the largest singular value."""


def _even_factors(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Returns U sqrt(S) and sqrt(S) V^T of a stack of matrices, largest singular values first."""
    if max(matrices.shape[-2:]) <= LARGE_SIDE:
        u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
        return u * s.sqrt()[:, None], s.sqrt()[..., None] * vh
    if matrices.shape[-2] > matrices.shape[-1]:
        right, left = _even_factors(matrices.mT)
        return left.mT, right.mT
    squares, vectors = torch.linalg.eigh(matrices @ matrices.mT)
    roots = squares.flip(-1).clamp_min(0).pow(0.25)[:, None]  # sqrt(S)
    u = vectors.flip(-1)
    tiny = roots <= 1e-4 * roots[..., :1]  # of these nothing but rounding is left
    return (u * roots).masked_fill(tiny, 0), (u / roots).masked_fill(tiny, 0).mT @ matrices


_WHITENERS = FactorCache(max_bytes=256 << 20)
"""Families share them, and pairs found by turns ask for the same one again and again."""


def forget_factors() -> None:
    """Frees what is held to be asked for again; it is found anew where it is."""
    _CACHE.clear()
    _WHITENERS.clear()


def _input_whitener(first: Op, op: Op, metric: LayerMetric) -> Tensor | None:
    moment = metric.input
    if moment is None:
        return None
    key = ("input", metric.fingerprint, str(first.kernel), str(first.groups))
    entries = first.inputs // first.groups * first.kernel[0] * first.kernel[1]
    found = _WHITENERS.get(
        key,
        lambda: (whitener(input_moment(first, moment, op), INPUT_DAMPING),),
        size_bytes=first.groups * entries**2 * moment.element_size(),
    )
    return found[0]


def _output_whitener(second: Op, metric: LayerMetric) -> Tensor | None:
    moment = metric.output
    if moment is None:
        return None
    key = ("output", metric.fingerprint, str(second.groups))
    return _WHITENERS.get(key, lambda: (whitener(diagonal_blocks(moment, second.groups), OUTPUT_DAMPING),))[0]


def _on_channels(matrix: Tensor, rows: Tensor) -> Tensor:
    """Applies a matrix to the channel part of rows = channels x taps."""
    grouped = rows.reshape(len(rows), matrix.shape[-1], -1)
    return (matrix @ grouped).reshape(rows.shape)


def _solve_on_channels(matrix: Tensor, rows: Tensor) -> Tensor:
    """Undoes `_on_channels`."""
    grouped = rows.reshape(len(rows), matrix.shape[-1], -1)
    if len(matrix) == len(rows):
        solved: Tensor = torch.linalg.solve_triangular(matrix, grouped, upper=True)
        return solved.reshape(rows.shape)
    # side by side: torch would copy the one matrix for every slice
    wide = grouped.transpose(0, 1).reshape(matrix.shape[-1], -1)
    solved = torch.linalg.solve_triangular(matrix[0], wide, upper=True)
    return solved.reshape(matrix.shape[-1], len(rows), -1).transpose(0, 1).reshape(rows.shape)


def _solve_on_columns(matrix: Tensor, rows: Tensor) -> Tensor:
    """Returns rows times the inverse of lower triangular matrices, one for each slice or one for all."""
    if len(matrix) == len(rows):
        solved: Tensor = torch.linalg.solve_triangular(matrix, rows, upper=False, left=False)
        return solved
    solved = torch.linalg.solve_triangular(matrix[0], rows.flatten(0, 1), upper=False, left=False)
    return solved.reshape(rows.shape)


METHOD = Method(
    "lowrank", "two layers by SVD: spatial, input-sliced, output-sliced (SVD-NAS)", candidates, factorise
)
