"""Stochastic gradient descent with momentum."""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings, parameter_groups, refuse


def make(network: nn.Module, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Returns torch's SGD."""
    refuse(settings, "sgd", "radius", "scale", "timing")
    return torch.optim.SGD(
        parameter_groups(network, settings.weight_decay),
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )


OPTIMISER = Optimiser("sgd", "gradient descent with momentum", make, passes=1)
