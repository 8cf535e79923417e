"""Blocks as algebra: the kernels of a block's layers, and the one kernel they amount to."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
    """Returns the kernel of `second` after `first`: a full convolution over the taps."""
    if second.shape[2:] == (1, 1):
        return torch.einsum("fm,mcij->fcij", second[:, :, 0, 0], first)
    if first.shape[2:] == (1, 1):
        return torch.einsum("fmij,mc->fcij", second, first[:, :, 0, 0])
    padding = (second.shape[2] - 1, second.shape[3] - 1)
    return F.conv2d(first.transpose(0, 1), second.flip(2, 3), padding=padding).transpose(0, 1)


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
    with torch.no_grad():
        for layers, weights in zip(block_layers(module), kernels, strict=True):
            for layer, weight in zip(layers, weights, strict=True):
                target = layer.get_parameter("weight")
                target.copy_(weight.reshape(target.shape))
        if bias is not None:
            block_layers(module)[0][-1].get_parameter("bias").copy_(bias)
    return module


def kernels_of(module: nn.Module) -> Kernels:
    """Returns the kernels of a block's module, detached, in float64."""

    def kernel(layer: nn.Module) -> Tensor:
        weight = layer.get_parameter("weight").detach().double()
        return weight[:, :, None, None] if weight.ndim == 2 else weight

    return tuple(tuple(kernel(layer) for layer in layers) for layers in block_layers(module))
