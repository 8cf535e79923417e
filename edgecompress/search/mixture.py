"""All candidates of a layer as one kernel: mixing in weight space.

With weights p shared by a batch, the sum of p_i conv(x, W_i) is conv(x, sum of p_i W_i): one convolution
instead of one per candidate. The candidates of a low-rank family are the first r columns and rows of one
factorisation, so their share of the kernel is

    left diag(z) right,   z_j = sum of p_i over the candidates with more than j ranks,

and of G = dL/dkernel the gradient of every candidate follows at once, since

    <G, W_i> = sum over j < r_i of left_j^T G right_j^T

are cumulative sums. One product forward and one backward per family, whatever the number of ranks.
Candidates without this structure, and all those of small layers, are rows of a matrix of whole kernels.

Kernels are made in the order (f, kh, kw, c): with the columns of `right` sorted by taps first, the products
of most families come out in it, where any other order would have every one of them copied. It is also what
torch calls channels_last, in which convolutions are faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgecompress.core.types import Candidate, Layer, Op
from edgecompress.methods.contract import Fill
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.families import Family, family_named, to_matrices, unfold

SMALL_BYTES = 2 << 20
"""Up to this size whole kernels are faster than factors: one product instead of several small ones."""

NEGLIGIBLE = 1e-4
"""Ranks that all candidates together give a smaller weight are left out of a step."""


@dataclass(frozen=True)
class Truncations:
    """The candidates of one family: truncations of one factorisation."""

    family: Family
    left: Tensor
    """(slices, rows, R)"""
    right: Tensor
    """(slices, R, columns); columns are taps x input channels."""
    places: Tensor
    """Where in the weight vector the candidates are."""
    ranks: Tensor


@dataclass(frozen=True)
class Mixture:
    """One layer's candidate space; place 0 of a weight vector is the dense layer."""

    op: Op
    kernels: Tensor
    """(n, f kh kw c): the dense kernel and candidates that are no truncations."""
    places: Tensor
    """Where in the weight vector the rows of `kernels` are."""
    families: tuple[Truncations, ...]
    size: int
    """Length of a weight vector."""
    negligible: float = NEGLIGIBLE

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the kernel as it is made: (f, kh, kw, c)."""
        return (self.op.outputs, *self.op.kernel, self.op.inputs)

    @property
    def nbytes(self) -> int:
        """Memory of everything that is kept."""
        factors = sum(one.left.nbytes + one.right.nbytes for one in self.families)
        return self.kernels.nbytes + factors


def make_mixture(
    layer: Layer,
    kernel: Tensor,
    candidates: Sequence[Candidate],
    fill: Fill,
    *,
    scale: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    factor_dtype: torch.dtype | None = None,
    small_bytes: int = SMALL_BYTES,
    negligible: float = NEGLIGIBLE,
) -> Mixture:
    """Prepares the mixture of a layer's dense kernel and its candidates, which get the places 1, 2, ...

    `scale` multiplies the output channels: that of a batch norm which is folded into the layer.
    `factor_dtype` is that of the factors and of products with them, if not `dtype` as all the rest.
    """
    each = torch.ones(len(kernel), dtype=kernel.dtype) if scale is None else scale.to(kernel.dtype)
    itemsize = torch.empty(0, dtype=dtype).itemsize
    small = (1 + len(candidates)) * kernel.numel() * itemsize <= small_bytes
    rows, places, families = [kernel], [0], []
    for (method, name), group in itertools.groupby(enumerate(candidates, 1), key=_family_of):
        members = list(group)
        if method == "lowrank" and not small:
            families.append(
                _truncations(layer, family_named(name), members, fill, each, factor_dtype or dtype)
            )
        else:
            rows += [equivalent_kernel(c.blocks[0], fill(c)).reshape_as(kernel) for _, c in members]
            places += [place for place, _ in members]
    flat = torch.stack([_flat(row * each[:, None, None, None]).to(dtype) for row in rows])
    size = 1 + len(candidates)
    return Mixture(layer.op, flat, torch.tensor(places), tuple(families), size, negligible)


def _flat(kernel: Tensor) -> Tensor:
    return kernel.permute(0, 2, 3, 1).flatten()


def _family_of(numbered: tuple[int, Candidate]) -> tuple[str, str]:
    return (numbered[1].method, numbered[1].family)


def _truncations(
    layer: Layer,
    family: Family,
    members: Sequence[tuple[int, Candidate]],
    fill: Fill,
    scale: Tensor,
    dtype: torch.dtype,
) -> Truncations:
    largest = max((candidate for _, candidate in members), key=lambda c: c.ranks)
    ((first, second),) = fill(largest)
    left, right = unfold(family, first, second, layer.op)
    shape = (layer.op.outputs, layer.op.inputs, *layer.op.kernel)
    by_row = to_matrices(family, scale[:, None, None, None].expand(shape))[..., :1]  # (slices, rows, 1)
    places = torch.tensor([place for place, _ in members])
    ranks = torch.tensor([candidate.ranks[0] for _, candidate in members])
    slices, rank, columns = right.shape
    taps = first.shape[2] * first.shape[3]
    by_taps = (
        right.reshape(slices, rank, columns // taps, taps).transpose(2, 3).reshape(slices, rank, columns)
    )
    return Truncations(
        family, (left * by_row).to(dtype).contiguous(), by_taps.to(dtype).contiguous(), places, ranks
    )


def mixed_kernel(mixture: Mixture, weights: Tensor) -> Tensor:
    """Returns the kernel (f, c, kh, kw) of a weight vector; exact gradients flow back to every weight.

    But for ranks of negligible total weight, which count as zero here and in the gradient.
    """
    mixed: Tensor = _Mix.apply(weights, mixture)  # type: ignore[no-untyped-call]
    return mixed


class _Mix(torch.autograd.Function):
    """Keeps nothing for the backward pass but the weights; the factors are the mixture's own."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, mixture: Mixture) -> Tensor:  # noqa: ANN401 - torch's own type
        ctx.mixture, ctx.weights = mixture, weights.detach()
        return _forward(mixture, ctx.weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return _backward(ctx.mixture, ctx.weights, gradient), None


def _forward(mixture: Mixture, weights: Tensor) -> Tensor:
    own = weights[mixture.places].to(mixture.kernels.dtype)
    total = (own @ mixture.kernels).reshape(mixture.shape)
    for one in mixture.families:
        z = _gates(one, weights, mixture.negligible)
        if len(z):
            _add_product_(total, one, z)
    return total.permute(0, 3, 1, 2)


def _add_product_(total: Tensor, one: Truncations, z: Tensor) -> None:
    left, right = one.left[..., : len(z)] * z, one.right[:, : len(z)]
    matrices = _matrices(one.family, total)
    if matrices.is_contiguous() and matrices.dtype == left.dtype:
        matrices.baddbmm_(left, right)
    else:
        matrices += (left @ right).reshape(matrices.shape)


def _matrices(family: Family, kernel: Tensor) -> Tensor:
    """Reads a kernel (f, kh, kw, c) as the family's matrices, as far as that is a view.

    Where it is not, rows and columns have several axes each.
    """
    (f, kh, kw, c), g = kernel.shape, family.slices
    if family.kind == "S2":
        return kernel.view(1, f * kh, kw * c)
    if family.kind == "S2T":
        return kernel.transpose(1, 2)  # (f, kw, kh, c)
    if family.kind == "S4":
        return kernel.view(f, kh, kw, g, c // g).permute(3, 0, 1, 2, 4) if g > 1 else kernel.view(1, f, -1)
    return kernel.view(g, f // g * kh * kw, c)


def _backward(mixture: Mixture, weights: Tensor, gradient: Tensor) -> Tensor:
    found = weights.new_zeros(mixture.size)
    by_kernel = gradient.permute(0, 2, 3, 1).contiguous()
    found[mixture.places] = (mixture.kernels @ by_kernel.flatten()).to(found.dtype)
    by_kernel = by_kernel.to(mixture.families[0].left.dtype) if mixture.families else by_kernel
    for one in mixture.families:
        used = len(_gates(one, weights, mixture.negligible))
        if used:
            slices, rows, columns = len(one.left), one.left.shape[1], one.right.shape[2]
            matrices = _matrices(one.family, by_kernel).reshape(slices, rows, columns)
            by_rank = _by_rank(one, matrices, used).to(found.dtype)
            found[one.places] = by_rank.cumsum(0)[one.ranks.clamp(max=used) - 1]
    return found


def _gates(one: Truncations, weights: Tensor, negligible: float) -> Tensor:
    """Returns z up to the last rank that counts; it never rises."""
    by_rank = weights.new_zeros(one.left.shape[-1] + 1)
    by_rank.index_add_(0, one.ranks, weights[one.places])
    z = by_rank[1:].flip(0).cumsum(0).flip(0)
    return z[: int((z > negligible).sum())].to(one.left.dtype)


def _by_rank(one: Truncations, matrices: Tensor, used: int) -> Tensor:
    """Returns left_j^T M right_j^T for each rank j, summed over slices; the smaller product is made."""
    left, right = one.left[..., :used], one.right[:, :used]
    total = left.dtype if left.dtype == torch.float64 else torch.float32  # sums of half precision
    if left.shape[1] <= right.shape[2]:
        return ((matrices @ right.mT) * left).sum((0, 1), dtype=total)
    return ((left.mT @ matrices) * right).sum((0, 2), dtype=total)
