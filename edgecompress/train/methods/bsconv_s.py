"""BSConv-S in place of convolutions: two 1 x 1 layers, the first kept near orthonormal, then a depthwise one.

Networks of inverted bottlenecks have that structure already; of them nothing is replaced, and the layers that
narrow are kept near orthonormal.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgecompress.core.types import Candidate, Layer
from edgecompress.errors import ConfigError, ModelError
from edgecompress.nets.modules import block_layers, layer_named
from edgecompress.train.blueprints import (
    bottlenecks,
    convolutions,
    is_replaced,
    kernel_of,
    middle_channels,
    orthonormality,
    put_in_place_,
    subspace_block,
    subspace_kernels,
)
from edgecompress.train.contract import Batch, Course, MethodOptions, Objective, TrainMethod, backward_once
from edgecompress.train.parallel import is_first


def begin(network: nn.Module, options: MethodOptions) -> Course:
    """Returns the course of a network with BSConv-S blocks and a penalty on the first layer of each.

    Raises:
        ConfigError: a share or weight is out of range.
        ModelError: the network has no layer that suits.
    """
    _check(options)
    layers = convolutions(network, options)
    narrowing = list(bottlenecks(network, layers, options))
    replaced = [layer for layer in layers if is_replaced(layer, options)]
    if not replaced and not narrowing:
        raise ModelError(
            "bsconv-s: the network has neither a k x k convolution to replace, besides depthwise ones and "
            "the first, nor bottlenecks between depthwise convolutions; train it by plain"
        )
    choices = tuple(_put_in_place_(network, layer, options.middle) for layer in replaced)
    first = [block_layers(layer_named(network, layer.name))[0][0] for layer in replaced]
    weights = [layer.get_parameter("weight") for layer in (*first, *narrowing)]

    def backward(objective: Objective, batch: Batch) -> Tensor:
        loss = backward_once(network, objective, batch)
        return loss + _penalise(weights, options.orthonormal) if is_first() else loss

    return Course(network, backward, lambda: copy.deepcopy(network).eval(), choices=choices)


def _check(options: MethodOptions) -> None:
    if not 0 < options.middle <= 1:
        raise ConfigError(f"--middle {options.middle:g}: must be a share of the inputs, above 0 and up to 1")
    if options.orthonormal < 0:
        raise ConfigError(f"--orthonormal {options.orthonormal:g}: must be 0 or more")


def _put_in_place_(network: nn.Module, layer: Layer, share: float) -> Candidate:
    middle = middle_channels(layer.op.inputs, share)
    kernels = subspace_kernels(kernel_of(network, layer), layer.op, middle)
    block = subspace_block(layer.op, middle)
    return put_in_place_(network, layer, block, kernels, method=METHOD.name, ranks=(middle,))


def _penalise(weights: Sequence[Tensor], strength: float) -> Tensor:
    """Adds the gradient of the penalty and returns it; gradients of processes are summed, so one adds it."""
    penalty = strength * torch.stack([orthonormality(weight) for weight in weights]).sum()
    torch.autograd.backward(penalty)
    return penalty.detach()


METHOD = TrainMethod(
    "bsconv-s",
    "blueprint separable: two 1 x 1, the first near orthonormal, then depthwise",
    "Haase and Amthor, CVPR 2020",
    begin,
)
