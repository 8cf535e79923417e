"""Weights read as matrices, and how many of their singular values a network of one size keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from edgecompress.core.types import Op
from edgecompress.errors import ModelError, UnsupportedLayer
from edgecompress.nets.families import Family, matrix_shape, max_rank, to_kernel, to_matrices
from edgecompress.nets.modules import op_of

Mode = Literal["channel", "spatial"]
CHANNEL, SPATIAL = Family("S4"), Family("S2")


@dataclass(frozen=True)
class MatrixWeight:
    """The weight of one layer, read as a matrix of outputs by inputs."""

    layer: str
    weight: nn.Parameter
    family: Family
    op: Op

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return matrix_shape(self.family, self.op)[1:]

    @property
    def max_rank(self) -> int:
        """How many singular values there are."""
        return max_rank(self.family, self.op)

    def matrix(self, values: Tensor | None = None) -> Tensor:
        """Returns the weight, or values in its place, as a matrix."""
        kernel = self.weight.detach() if values is None else values
        return to_matrices(self.family, kernel[:, :, None, None] if kernel.ndim == 2 else kernel)[0]

    def values(self, matrix: Tensor) -> Tensor:
        """Undoes `matrix`."""
        return to_kernel(self.family, matrix[None], self.op).reshape(self.weight.shape)


def family_of(op: Op, mode: Mode) -> Family:
    """Returns the family a layer is read in; of 1 x 1 kernels and linear layers all modes are one."""
    return SPATIAL if mode == "spatial" and op.kernel != (1, 1) else CHANNEL


def matrix_weights(network: nn.Module, mode: Mode) -> tuple[MatrixWeight, ...]:
    """Returns the trainable weights of all convolutions without groups and linear layers, each once.

    Raises:
        ModelError: there are none.
    """
    found = tuple(_found(network, mode))
    if not found:
        raise ModelError("no convolution without groups and no linear layer has a trainable weight to cut")
    return found


def _found(network: nn.Module, mode: Mode) -> Iterator[MatrixWeight]:
    seen: set[int] = set()
    for name, module in network.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, nn.Parameter) or not weight.requires_grad or id(weight) in seen:
            continue
        try:
            op = op_of(module)
        except UnsupportedLayer:
            continue
        if op.groups == 1:
            seen.add(id(weight))
            yield MatrixWeight(name, weight, family_of(op, mode), op)


def global_ranks(values: Sequence[Tensor], share: float, least: int) -> list[int]:
    """Keeps that share of the singular values of all layers, the largest of the whole pool.

    No layer gets fewer than `least`, as far as it has so many; so the sum may be more than the share.
    """
    pool = torch.cat([one.double() for one in values])
    owners = torch.repeat_interleave(torch.tensor([len(one) for one in values]))
    kept = owners[pool.topk(round(share * len(pool))).indices]
    counts: list[int] = torch.bincount(kept, minlength=len(values)).tolist()
    return [max(count, min(least, len(one))) for count, one in zip(counts, values, strict=True)]


def energy_rank(values: Tensor, share: float) -> int:
    """Returns the least rank that keeps a share of the squared singular values, 1 at least."""
    energies = values.double().square()
    # counted from the small end: sums of the large ones would round small tails away
    lost = energies.flip(0).cumsum(0).flip(0)  # without this value and all after it
    return max(1, int((lost > (1 - share) * lost[0]).sum()))
