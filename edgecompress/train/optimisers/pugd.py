"""PUGD with RTS: steps of one length along two gradients; radius, timing and scale can be chosen.

    e = radius * |w| g / | |w| g |          elementwise products, one norm over all parameters
    u = (g* + scale g) / | g* + scale g |

Scale 0 goes by the perturbed gradient alone, as SAM does; radius 0 is plain normalised descent. Weight decay
is added to u, so it is weighed against a gradient of length 1, not against the one there was.

References: Tseng et al., Perturbated gradients updating within unit space for deep learning, 2021
(arXiv 2110.00199). RTS is a draft; docs/optimisers.md says how it is read.
"""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.train.from_settings import over_sgd
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings
from edgecompress.train.perturbation import Tensors, global_norm
from edgecompress.train.radius_schedules import const
from edgecompress.train.two_pass import Rule, TwoPass


def ascent(weights: Tensors, grads: Tensors) -> tuple[Tensors, float]:
    """Returns |w| g and its norm."""
    products = torch._foreach_abs(weights)
    torch._foreach_mul_(products, grads)
    return products, global_norm(products)


class PUGDRTS(TwoPass):
    """Perturbed unit gradient descent with schedules and triggers; its options are those of `TwoPass`."""

    rule = Rule(ascent, unit_steps=True, radius=const(1), scale=const(1))


def make(network: nn.Module, settings: OptimiserSettings) -> torch.optim.Optimizer:
    """Returns PUGD over SGD."""
    return over_sgd(PUGDRTS, network, settings)


OPTIMISER = Optimiser("pugd", "unit steps along gradients at and near the weights (PUGD)", make, passes=2)
