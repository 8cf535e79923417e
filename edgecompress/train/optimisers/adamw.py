"""Adam with weight decay beside the gradient.

Reference: Loshchilov and Hutter, Decoupled weight decay regularization, ICLR 2019.
"""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings, parameter_groups, refuse


def make(network: nn.Module, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Returns torch's AdamW."""
    refuse(settings, "adamw", "nesterov", "radius", "scale", "timing")
    groups = parameter_groups(network, settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.momentum, 0.999))


OPTIMISER = Optimiser("adamw", "Adam with decoupled weight decay", make, passes=1)
