"""Trains blocks of several small convolutions as one convolution, whose kernel is the product of theirs.

Grouped convolutions save multiplications, but trained on a CPU they take up to four times as long as the
convolution their block replaced. The product of a block's kernels costs next to nothing, and what it
computes, and its gradient, are the same to rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.types import Block, Op
from edgecompress.errors import UnsupportedLayer
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.modules import Sum, block_layers, layer_named, op_of, replace_


class OneKernel(nn.Module):
    """A block that runs as one convolution."""

    def __init__(self, block: nn.Module, ops: Block) -> None:
        """Takes a module of `block_module`, which keeps its weights, and the operators it consists of."""
        super().__init__()
        self.block, self.ops = block, ops
        first = ops.branches[0]
        self.stride = tuple(math.prod(op.stride[axis] for op in first) for axis in (0, 1))
        self.padding = tuple(sum(op.padding[axis] for op in first) for axis in (0, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Runs the product of all kernels."""
        layers = block_layers(self.block)
        kernels = tuple(tuple(layer.get_parameter("weight") for layer in chain) for chain in layers)
        kernel = equivalent_kernel(self.ops, kernels)
        kernel = kernel.contiguous(memory_format=torch.channels_last)
        return F.conv2d(images, kernel, _bias(layers), self.stride, self.padding)


def _bias(layers: list[list[nn.Module]]) -> Tensor | None:
    found = [chain[-1].bias for chain in layers if isinstance(chain[-1].bias, Tensor)]
    return torch.stack(found).sum(0) if found else None


def join_blocks_(network: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """Makes blocks run as one convolution where that is the same and worth it, and returns which ones do."""
    joined = []
    for name in names:
        block = layer_named(network, name)
        ops = block_of(block)
        if ops is not None and is_slow(ops) and can_be_joined(ops):
            replace_(network, name, OneKernel(block, ops))
            joined.append(name)
    return tuple(joined)


def divided(network: nn.Module) -> nn.Module:
    """Returns a copy with the blocks as they were, with the weights of now."""
    found = copy.deepcopy(network)
    for name, module in list(found.named_modules()):
        if isinstance(module, OneKernel):
            replace_(found, name, module.block)
    return found


def block_of(module: nn.Module) -> Block | None:
    """Returns the operators of a block, or None where it is none of convolutions."""
    if type(module) is not nn.Sequential and not isinstance(module, Sum):
        return None
    try:
        branches = tuple(tuple(op_of(layer) for layer in chain) for chain in block_layers(module))
    except UnsupportedLayer:
        return None
    if any(op.kind != "conv2d" for chain in branches for op in chain):
        return None
    return Block(branches=branches)


def is_slow(ops: Block) -> bool:
    """Tells whether a block has grouped layers; others are about as quick as their product, or quicker."""
    return any(op.groups > 1 for chain in ops.branches for op in chain)


def can_be_joined(ops: Block) -> bool:
    """Tells whether one convolution computes the same as a block.

    Only the last layers of branches may have a bias, and along either axis one layer at most has taps, with
    all the padding, and no layer before it skips positions.
    """
    ends = {(_total(chain), chain[0].inputs, chain[-1].outputs) for chain in ops.branches}
    return len(ends) == 1 and all(_is_one(chain) for chain in ops.branches)


def _total(chain: tuple[Op, ...]) -> tuple[int, ...]:
    """Returns stride, padding and kernel of a whole branch."""
    return tuple(
        value
        for axis in (0, 1)
        for value in (
            math.prod(op.stride[axis] for op in chain),
            sum(op.padding[axis] for op in chain),
            math.prod(op.kernel[axis] for op in chain),
        )
    )


def _is_one(chain: tuple[Op, ...]) -> bool:
    if any(op.bias for op in chain[:-1]) or any(op.dilation != (1, 1) for op in chain):
        return False
    return all(_is_one_along(chain, axis) for axis in (0, 1))


def _is_one_along(chain: tuple[Op, ...], axis: int) -> bool:
    taps = [place for place, op in enumerate(chain) if op.kernel[axis] > 1]
    padded = [place for place, op in enumerate(chain) if op.padding[axis] > 0]
    strided = [place for place, op in enumerate(chain) if op.stride[axis] > 1]
    if len(taps) > 1 or any(place not in taps for place in padded):
        return False
    return not taps or all(place >= taps[0] for place in strided)
