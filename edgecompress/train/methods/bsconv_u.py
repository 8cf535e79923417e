"""BSConv-U in place of convolutions: a 1 x 1 layer, then a depthwise one. The result keeps the blocks."""

from __future__ import annotations

import copy
from functools import partial

from torch import nn

from edgecompress.errors import ModelError
from edgecompress.train.blueprints import (
    convolutions,
    full_block,
    full_kernels,
    is_replaced,
    kernel_of,
    put_in_place_,
)
from edgecompress.train.contract import Course, MethodOptions, TrainMethod, backward_once


def begin(network: nn.Module, options: MethodOptions) -> Course:
    """Returns the course of a network whose k x k convolutions are blueprint separable.

    Raises:
        ModelError: it has none that could be.
    """
    layers = [layer for layer in convolutions(network, options) if is_replaced(layer, options)]
    if not layers:
        raise ModelError(
            "bsconv-u: the network has no k x k convolution to replace besides depthwise ones and the first; "
            "networks of depthwise and 1 x 1 convolutions can be trained by bsconv-s"
        )
    choices = []
    for layer in layers:
        kernels = full_kernels(kernel_of(network, layer), layer.op)
        block = full_block(layer.op)
        choices.append(put_in_place_(network, layer, block, kernels, method=METHOD.name, ranks=(1,)))
    return Course(
        network,
        partial(backward_once, network),
        lambda: copy.deepcopy(network).eval(),
        choices=tuple(choices),
    )


METHOD = TrainMethod(
    "bsconv-u",
    "blueprint separable: 1 x 1, then depthwise, in place of every k x k convolution",
    "Haase and Amthor, CVPR 2020",
    begin,
)
