"""In which metric a factorisation is best: that of the weights, or that of what the layer computes.

A layer y = W x (x a patch) that becomes y' = K x changes the loss, to second order and under the
Kronecker assumption of K-FAC, by

    1/2 tr(output (W - K) input (W - K)^T),

with `input` the second moment of the patches and `output` that of the loss gradient at y. Identity
matrices give the plain Frobenius norm. Factors are found by an SVD of the whitened matrices.

Reference: Martens and Grosse, K-FAC, ICML 2015 (the form); response PCA is the case output = I.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from edgecompress.core.types import Op
from edgecompress.nets.factor_cache import fingerprint

INPUT_DAMPING = 1e-4
OUTPUT_DAMPING = 1e-2
"""Shares of the mean diagonal added to it: moments of few images are close to singular."""

LARGE_KERNEL = 1 << 18
"""Errors of larger kernels are summed in float32, which is twice as fast and exact enough to rank them."""


@dataclass(frozen=True)
class LayerMetric:
    """Second moments of one layer, float64; None stands for the identity."""

    input: Tensor | None = None
    """(c kh kw) squared, in the order of the kernel's own axes."""
    output: Tensor | None = None
    """f squared, summed over the positions of one image."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells metrics of different values apart."""
        return "/".join("-" if m is None else fingerprint(m) for m in (self.input, self.output))


PLAIN = LayerMetric()


def kernel_error(kernel: Tensor, approximation: Tensor, metric: LayerMetric) -> float:
    """Returns tr(output D input D^T) of the difference D of two (f, c, kh, kw) kernels."""
    difference = (kernel - approximation).flatten(1)
    if difference.numel() > LARGE_KERNEL:
        difference = difference.float()
    seen = difference if metric.input is None else difference @ metric.input.to(difference)
    pulled = difference if metric.output is None else metric.output.to(difference) @ difference
    return float((seen * pulled).sum(dtype=torch.float64))


def damped(moment: Tensor, damping: float) -> Tensor:
    """Returns second moments with a share of their mean diagonal added to it.

    Moments of nothing but zeros become a multiple of the identity: no direction counts more.
    """
    mean = moment.diagonal(dim1=-2, dim2=-1).mean()
    scale = torch.where(mean > 0, mean, 1.0)
    ridge = moment.clone(memory_format=torch.contiguous_format)
    ridge.diagonal(dim1=-2, dim2=-1).add_(damping * scale)
    return ridge


def whitener(moment: Tensor, damping: float) -> Tensor:
    """Returns the lower Cholesky factors of a stack of damped second moments."""
    ridge = damped(moment.mT, damping).mT  # by columns, so that it becomes its own factor
    factors: Tensor = torch.linalg.cholesky(ridge, out=ridge)
    return factors


def input_moment(first: Op, moment: Tensor, op: Op) -> Tensor:
    """Returns the second moment of the patches of `first`, the layer that now meets the input of `op`.

    `moment` belongs to the whole patches of `op`, (c kh kw) squared. The result is (groups, n, n).
    Taps of `op` that `first` does not have are summed over: correlations between them, and between
    groups, stay outside the metric of `first` alone.
    """
    c, (kh, kw) = op.inputs, op.kernel
    full = moment.reshape(c, kh, kw, c, kh, kw)
    if first.kernel[0] != kh:
        full = torch.einsum("aijbik->ajbk", full)[:, None, :, :, None, :]
    if first.kernel[1] != kw:
        full = torch.einsum("aijbkj->aibk", full)[:, :, None, :, :, None]
    size = c // first.groups * first.kernel[0] * first.kernel[1]
    return diagonal_blocks(full.reshape(first.groups * size, first.groups * size), first.groups)


def diagonal_blocks(matrix: Tensor, count: int) -> Tensor:
    """Cuts `count` equal square blocks from the diagonal; the only one is a view of the matrix."""
    if count == 1:
        return matrix[None]
    size = len(matrix) // count
    blocks = matrix.reshape(count, size, count, size)
    return torch.stack([blocks[j, :, j] for j in range(count)])
