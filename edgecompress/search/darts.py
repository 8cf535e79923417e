"""Bilevel architecture search by alternating steps: the baselines of RARTS.

Weights follow the inner loss, the architecture the outer one (DARTS: Liu, Simonyan and Yang, 2019).
Without look-ahead the architecture takes the weights as they are (DARTS-1). With look-ahead xi it takes
them one step of that size further and accounts for how that step depends on it (DARTS-2), by finite
differences instead of second derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from edgecompress.search.descent import (
    Loss,
    Tensors,
    by_architecture,
    by_both,
    by_weights,
    moved,
    step_with_,
)

DIFFERENCE = 0.01
"""Length of the step, in weight space, over which a finite difference is taken."""


@dataclass(frozen=True)
class Bilevel:
    """The two losses of a bilevel search."""

    outer: Loss
    inner: Loss
    lookahead: float = 0.0
    """Size of the inner step the architecture foresees; 0 is DARTS-1."""
    inner_share: float = 0.0
    """Weight of the inner loss in the architecture's own step, as in MiLeNAS; 0 is DARTS."""


def darts_step(
    losses: Bilevel, w: Tensors, alpha: Tensors, *, w_size: float, alpha_size: float
) -> tuple[Tensors, Tensors]:
    """Returns weights and architecture after one gradient step of the architecture, then of the weights."""
    alpha = moved(alpha, architecture_gradient(losses, w, alpha), alpha_size)
    return moved(w, by_weights(losses.inner, w, alpha), w_size), alpha


def darts_step_(
    losses: Bilevel, w: Tensors, alpha: Tensors, *, w_optimiser: Optimizer, alpha_optimiser: Optimizer
) -> None:
    """Trains parameters in place by one step of each optimiser.

    With look-ahead the losses must use the weights they are given: those are not the parameters.
    """
    step_with_(alpha_optimiser, alpha, architecture_gradient(losses, w, alpha))
    step_with_(w_optimiser, w, by_weights(losses.inner, w, alpha))


def architecture_gradient(losses: Bilevel, w: Tensors, alpha: Tensors) -> Tensors:
    """Returns the gradient DARTS takes for that of the outer loss at the inner optimum."""
    total = _foreseen_gradient(losses, w, alpha)
    if losses.inner_share == 0:
        return total
    own = by_architecture(losses.inner, w, alpha)
    return tuple(t + losses.inner_share * o for t, o in zip(total, own, strict=True))


def _foreseen_gradient(losses: Bilevel, w: Tensors, alpha: Tensors) -> Tensors:
    xi = losses.lookahead
    if xi == 0:
        return by_architecture(losses.outer, w, alpha)
    ahead = moved(w, by_weights(losses.inner, w, alpha), xi)
    direction, direct = by_both(losses.outer, ahead, alpha)
    correction = _mixed_derivative(losses.inner, w, alpha, direction)
    return tuple(d - xi * c for d, c in zip(direct, correction, strict=True))


def _mixed_derivative(loss: Loss, w: Tensors, alpha: Tensors, direction: Tensors) -> Tensors:
    """Returns how the gradient by alpha changes along a direction of the weights, times its length."""
    length = float(torch.stack([d.square().sum() for d in direction]).sum().sqrt())
    if length == 0:
        return tuple(map(torch.zeros_like, alpha))
    size = DIFFERENCE / length
    above = by_architecture(loss, moved(w, direction, -size), alpha)
    below = by_architecture(loss, moved(w, direction, size), alpha)
    return tuple((a - b) / (2 * size) for a, b in zip(above, below, strict=True))
