"""Ordinary training: the gradient of the loss, nothing else."""

from __future__ import annotations

import copy
from functools import partial

from torch import nn

from edgecompress.train.contract import Course, MethodOptions, TrainMethod, backward_once


def begin(network: nn.Module, options: MethodOptions) -> Course:
    """Returns the course of a network that is trained as it is."""
    return Course(network, partial(backward_once, network), lambda: copy.deepcopy(network).eval())


METHOD = TrainMethod("plain", "the network as it is", "", begin)
