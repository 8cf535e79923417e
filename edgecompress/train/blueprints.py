"""Blueprint separable convolutions: each filter is one small map, scaled for every input channel.

    BSConv-U   1 x 1, M -> N              then   k x k depthwise on N
    BSConv-S   1 x 1, M -> M', 1 x 1, M' -> N   then   k x k depthwise on N

Stride, padding, dilation and bias are the last layer's. Both are started from the kernel that was there.

Reference: Haase and Amthor, Rethinking Depthwise Separable Convolutions: How Intra-Kernel Correlations Lead
to Improved MobileNets, CVPR 2020.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from edgecompress.core.costs import block_macs, block_params
from edgecompress.core.types import Block, Candidate, Layer, Op
from edgecompress.nets.chains import Kernels, filled_block
from edgecompress.nets.families import Family, fold, pair_ops, to_matrices
from edgecompress.nets.modules import find_batch_norms, find_layers, layer_named, replace_, weight_of
from edgecompress.train.contract import MethodOptions

LEAST_MIDDLE = 4
"""Channels in the middle of BSConv-S, where there are so many inputs."""


def convolutions(network: nn.Module, options: MethodOptions) -> tuple[Layer, ...]:
    """Returns the convolutions of a network that a block could stand for, in forward order."""
    assert options.input_shape is not None, "whoever begins a training knows the size of images"
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
    return find_layers(network.eval(), names, options.input_shape)[0]


def is_replaced(layer: Layer, options: MethodOptions) -> bool:
    """Tells whether a blueprint takes a layer's place: k x k, no groups, and not reading the image itself."""
    assert options.input_shape is not None
    return layer.op.kernel != (1, 1) and layer.op.groups == 1 and layer.op.inputs != options.input_shape[0]


def full_block(op: Op) -> Block:
    """Returns BSConv-U in place of a convolution."""
    return Block(branches=(pair_ops(_per_filter(op), op, 1),))


def full_kernels(kernel: Tensor, op: Op) -> Kernels:
    """Returns the weights of BSConv-U that are nearest to a kernel: rank 1 of every filter."""
    family = _per_filter(op)
    u, s, vh = torch.linalg.svd(to_matrices(family, kernel), full_matrices=False)  # (N, taps, M)
    root = s[:, :1].sqrt()
    return (fold(family, u[..., :1] * root[:, None], root[..., None] * vh[:, :1], op),)


def subspace_block(op: Op, middle: int) -> Block:
    """Returns BSConv-S in place of a convolution."""
    pointwise, depthwise = pair_ops(_per_filter(op), op, 1)
    first = pointwise.model_copy(update={"outputs": middle})
    second = pointwise.model_copy(update={"inputs": middle})
    return Block(branches=((first, second, depthwise),))


def subspace_kernels(kernel: Tensor, op: Op, middle: int) -> Kernels:
    """Returns weights of BSConv-S: the best of that rank in place of the pointwise layer of BSConv-U.

    Blueprints have length 1 while it is sought, and the first layer is orthonormal.
    """
    ((pointwise, depthwise),) = full_kernels(kernel, op)
    lengths = depthwise.flatten(1).norm(dim=1).clamp_min(torch.finfo(kernel.dtype).tiny)
    scaled = pointwise[:, :, 0, 0] * lengths[:, None]  # (N, M)
    u, s, vh = torch.linalg.svd(scaled, full_matrices=True)
    kept = min(middle, len(s))
    second = torch.zeros(op.outputs, middle, dtype=kernel.dtype)
    second[:, :kept] = u[:, :kept] * s[:kept]
    blueprints = depthwise / lengths[:, None, None, None]
    return ((vh[:middle, :, None, None], second[:, :, None, None], blueprints),)


def middle_channels(inputs: int, share: float) -> int:
    """Returns how many channels BSConv-S has in the middle."""
    return min(inputs, max(LEAST_MIDDLE, math.ceil(share * inputs)))


def put_in_place_(
    network: nn.Module, layer: Layer, block: Block, kernels: Kernels, *, method: str, ranks: tuple[int, ...]
) -> Candidate:
    """Exchanges a convolution for a block with these weights, and returns the choice a plan needs to know."""
    old = layer_named(network, layer.name)
    bias = old.get_parameter("bias") if layer.op.bias else None
    weight = old.get_parameter("weight")
    replace_(network, layer.name, filled_block(block, kernels, bias).to(weight.dtype).train(old.training))
    return Candidate(
        method=method,
        family=method,
        ranks=ranks,
        layers=(layer.name,),
        blocks=(block,),
        params=block_params(block),
        macs=block_macs(block, layer.in_size),
    )


def kernel_of(network: nn.Module, layer: Layer) -> Tensor:
    """Returns a layer's kernel in float64."""
    return weight_of(layer_named(network, layer.name)).double()


def bottlenecks(network: nn.Module, layers: tuple[Layer, ...], options: MethodOptions) -> Iterator[nn.Module]:
    """Yields the 1 x 1 convolutions that narrow what a depthwise one made, to be widened again.

    Such a layer, the widening one after it and the next depthwise one are BSConv-S already: MobileNets from
    the second on, EfficientNets and their kin consist of them. A batch norm follows, unlike in a
    squeeze-and-excite.
    """
    assert options.input_shape is not None
    norms = find_batch_norms(network, [layer.name for layer in layers], options.input_shape)
    made = 0
    for layer in layers:
        op = layer.op
        if op.groups == op.outputs > 1:
            made = op.outputs
        elif op.kernel == (1, 1) and op.outputs < op.inputs == made and layer.name in norms:
            yield layer_named(network, layer.name)


def orthonormality(weight: Tensor) -> Tensor:
    """Returns |W W^T - I| of a 1 x 1 kernel; 0 where its filters are orthonormal."""
    rows = weight.flatten(1)
    eye = torch.eye(len(rows), dtype=rows.dtype)
    distance: Tensor = torch.linalg.matrix_norm(rows @ rows.mT - eye)
    return distance


def _per_filter(op: Op) -> Family:
    return Family("S5", op.outputs)
