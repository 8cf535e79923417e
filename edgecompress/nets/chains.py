"""Blocks as algebra: the kernels of a block's layers, and the one kernel they amount to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgecompress.core.types import Block, Op
from edgecompress.nets.modules import block_layers, block_module

Kernels = tuple[tuple[Tensor, ...], ...]
"""Weights (out, in / groups, kh, kw) of a block's layers: one tuple per branch, in forward order."""


def equivalent_kernel(block: Block, kernels: Kernels) -> Tensor:
    """Returns the kernel of the single convolution a block computes.

    Strides do not enter: the families put them where they commute with the split.
    """
    branches = [_chain_kernel(ops, weights) for ops, weights in zip(block.branches, kernels, strict=True)]
    return torch.stack(branches).sum(0)


def _chain_kernel(ops: tuple[Op, ...], weights: tuple[Tensor, ...]) -> Tensor:
    total = _ungrouped(weights[0], ops[0].groups)
    for op, weight in zip(ops[1:], weights[1:], strict=True):
        total = _compose(total, _ungrouped(weight, op.groups))
    return total


def _compose(first: Tensor, second: Tensor) -> Tensor:
    """Returns the kernel of `second` after `first`.

    In our blocks only one of the two has taps along either axis, so the full convolution over the
    taps is an outer product.
    """
    (f, m, i, j), (_, c, p, q) = second.shape, first.shape
    assert min(i, p) == 1 and min(j, q) == 1, "taps of two layers along one axis"
    left = second.permute(0, 2, 3, 1).reshape(f * i * j, m)
    right = first.reshape(m, c * p * q)
    return (left @ right).reshape(f, i, j, c, p, q).permute(0, 3, 1, 4, 2, 5).reshape(f, c, i * p, j * q)


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """Writes a grouped kernel as a dense one with zeros between the groups."""
    if groups == 1:
        return weight
    f, c, kh, kw = weight.shape
    parts = weight.reshape(groups, f // groups, c, kh, kw)
    eye = torch.eye(groups, dtype=weight.dtype)
    return torch.einsum("gh,gfcij->gfhcij", eye, parts).reshape(f, groups * c, kh, kw)


def filled_block(block: Block, kernels: Kernels, bias: Tensor | None) -> nn.Module:
    """Builds a block's module with these weights; the bias goes to the last layer of the first branch."""
    module = block_module(block)
    fill_(module, kernels)
    if bias is not None:
        with torch.no_grad():
            block_layers(module)[0][-1].get_parameter("bias").copy_(bias)
    return module


@torch.no_grad()
def fill_(module: nn.Module, kernels: Kernels) -> None:
    """Writes kernels into a block's module; biases stay."""
    for layers, weights in zip(block_layers(module), kernels, strict=True):
        for layer, weight in zip(layers, weights, strict=True):
            target = layer.get_parameter("weight")
            target.copy_(weight.reshape(target.shape))


def kernels_of(module: nn.Module) -> Kernels:
    """Returns the kernels of a block's module, detached, in float64."""

    def kernel(layer: nn.Module) -> Tensor:
        weight = layer.get_parameter("weight").detach().double()
        return weight[:, :, None, None] if weight.ndim == 2 else weight

    return tuple(tuple(kernel(layer) for layer in layers) for layers in block_layers(module))
