"""Makes optimisers with two passes as settings ask for them, over SGD."""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.train.optimiser_contract import OptimiserSettings, parameter_groups
from edgecompress.train.radius_schedules import parse_radius
from edgecompress.train.timing import parse_timing
from edgecompress.train.two_pass import TwoPass


def over_sgd(kind: type[TwoPass], network: nn.Module, settings: OptimiserSettings) -> TwoPass:
    """Returns an optimiser of a network whose norms keep the statistics of first passes."""
    return kind(
        parameter_groups(network, settings.weight_decay),
        torch.optim.SGD,
        radius=None if settings.radius is None else parse_radius(settings.radius),
        scale=None if settings.scale is None else parse_radius(settings.scale),
        timing=parse_timing(settings.timing),
        bn_modules=[network],
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )
