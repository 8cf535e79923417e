"""ASAM: SAM that does not mind how layers are scaled, e = radius T^2 g / |T g| with T = |w| + 0.01.

T is 1 for biases and for scales and shifts of norms, which are the parameters of one dimension.

Reference: Kwon et al., ASAM: adaptive sharpness-aware minimization for scale-invariant learning of deep
neural networks, ICML 2021.
"""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.train.from_settings import over_sgd
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings, refuse
from edgecompress.train.perturbation import Tensors, global_norm
from edgecompress.train.radius_schedules import const
from edgecompress.train.two_pass import Rule, TwoPass

ETA = 0.01
"""Keeps weights of 0 in play."""


def ascent(weights: Tensors, grads: Tensors) -> tuple[Tensors, float]:
    """Returns T^2 g and the norm of T g."""
    sizes = torch._foreach_abs(weights)
    torch._foreach_add_(sizes, ETA)
    for size in sizes:
        if size.ndim < 2:
            size.fill_(1.0)
    scaled = torch._foreach_mul(sizes, grads)
    torch._foreach_mul_(sizes, scaled)
    return sizes, global_norm(scaled)


class ASAM(TwoPass):
    """Adaptive sharpness-aware minimisation; its options are those of `TwoPass`."""

    rule = Rule(ascent, unit_steps=False, radius=const(0.5), scale=const(0))


def make(network: nn.Module, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Returns ASAM over SGD."""
    refuse(settings, "asam", "scale")
    return over_sgd(ASAM, network, settings)


OPTIMISER = Optimiser("asam", "SAM whatever the scale of layers (Kwon et al., 2021)", make, passes=2)
