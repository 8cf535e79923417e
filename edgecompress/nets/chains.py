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
    """Composes from the front; all but the first of two layers composed are dense from then on."""
    total, groups = weights[0], ops[0].groups
    for op, weight in zip(ops[1:], weights[1:], strict=True):
        total, groups = _compose(total, groups, weight, op.groups), 1
    return _ungrouped(total, groups)


def _compose(first: Tensor, first_groups: int, second: Tensor, second_groups: int) -> Tensor:
    """Returns the dense kernel of `second` after `first`; products run over the groups of one of them.

    In our blocks only one of the two has taps along either axis, so the full convolution over the
    taps is an outer product.
    """
    if first_groups > 1 and second_groups > 1:
        return _compose(_ungrouped(first, first_groups), 1, second, second_groups)
    g = max(first_groups, second_groups)
    (m, c, p, q), (f, _, i, j) = first.shape, second.shape
    assert min(i, p) == 1 and min(j, q) == 1, "taps of two layers along one axis"
    right = first.reshape(g, m // g, c * p * q)
    if second_groups > 1:  # each group has its own outputs
        left = second.reshape(g, f // g, m // g, i * j).transpose(2, 3).reshape(g, f // g * i * j, m // g)
        product = (left @ right).reshape(f, i, j, c, p, q)
    else:  # each group has its own inputs
        left = second.reshape(f, g, m // g, i * j).permute(1, 0, 3, 2).reshape(g, f * i * j, m // g)
        product = (left @ right).reshape(g, f, i, j, c, p, q).permute(1, 2, 3, 0, 4, 5, 6)
        product = product.reshape(f, i, j, g * c, p, q)
    return product.permute(0, 3, 1, 4, 2, 5).reshape(f, -1, i * p, j * q)


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
