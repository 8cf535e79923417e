"""SAM: the gradient at the worst weights nearby, e = radius g / |g|.

Reference: Foret et al., Sharpness-aware minimization for efficiently improving generalization, ICLR 2021.
"""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.train.from_settings import over_sgd
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings, refuse
from edgecompress.train.perturbation import Tensors, global_norm
from edgecompress.train.radius_schedules import const
from edgecompress.train.two_pass import Rule, TwoPass


def ascent(weights: Tensors, grads: Tensors) -> tuple[Tensors, float]:
    """Returns g and its norm."""
    return grads, global_norm(grads)


class SAM(TwoPass):
    """Sharpness-aware minimisation; its options are those of `TwoPass`."""

    rule = Rule(ascent, unit_steps=False, radius=const(0.05), scale=const(0))


def make(network: nn.Module, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Returns SAM over SGD."""
    refuse(settings, "sam", "scale")
    return over_sgd(SAM, network, settings)


OPTIMISER = Optimiser("sam", "the gradient at the worst weights nearby (Foret et al., 2021)", make, passes=2)
