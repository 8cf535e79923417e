"""Adam with weight decay in the gradient, an L2 penalty.

Training by factors wants it: the penalty on factors lowers the rank of their product where it is part of the
loss; decay beside the gradient comes to rest elsewhere.

Reference: Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015.
"""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings, parameter_groups, refuse


def make(network: nn.Module, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Returns torch's Adam."""
    refuse(settings, "adam-l2", "nesterov", "radius", "scale", "timing")
    groups = parameter_groups(network, settings.weight_decay)
    return torch.optim.Adam(groups, lr=settings.lr, betas=(settings.momentum, 0.999))


OPTIMISER = Optimiser("adam-l2", "Adam with an L2 penalty in the gradient", make, passes=1)
