"""Proximal maps of penalties that make zeros, and descent that relaxes the variable they act on.

Each map returns the minimiser of 1/2 |y - x|^2 + threshold P(y) for its own penalty P. Where two values do
equally well, it returns zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from edgecompress.errors import ConfigError
from edgecompress.search.descent import Loss, Tensors, by_weights
from edgecompress.search.rarts import soft_threshold

__all__ = [
    "group_hard_threshold",
    "group_soft_threshold",
    "hard_threshold",
    "rvsm_step",
    "soft_threshold",
    "transformed_l1",
    "transformed_l1_threshold",
]

Prox = Callable[[Tensor, float], Tensor]


def hard_threshold(x: Tensor, threshold: float) -> Tensor:
    """Returns the minimiser for the number of entries that are not zero."""
    return torch.where(x.abs() > math.sqrt(2 * threshold), x, torch.zeros_like(x))


def group_soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """Returns the minimiser for the sum of the lengths of the rows: all but the first axis are one row."""
    lengths = _row_lengths(x)
    shares = (1 - threshold / lengths.clamp_min(torch.finfo(x.dtype).tiny)).clamp(min=0)
    return x * shares


def group_hard_threshold(x: Tensor, threshold: float) -> Tensor:
    """Returns the minimiser for the number of rows that are not zero."""
    return torch.where(_row_lengths(x) > math.sqrt(2 * threshold), x, torch.zeros_like(x))


def transformed_l1(x: Tensor, a: float) -> Tensor:
    """Returns (a + 1) |x| / (a + |x|): like the count of nonzeros for small a, like |x| for large a."""
    return (a + 1) * x.abs() / (a + x.abs())


def transformed_l1_threshold(x: Tensor, threshold: float, a: float) -> Tensor:
    """Returns the minimiser for the sum of `transformed_l1`.

    The closed form is a root of a cubic (Zhang and Xin, 2017).

    Raises:
        ConfigError: a is not positive.
    """
    if not a > 0:
        raise ConfigError(f"a={a!r}: the transformed l1 penalty needs a positive one")
    size = x.abs()
    if threshold <= a * a / (2 * (a + 1)):
        edge = threshold * (a + 1) / a
    else:
        edge = math.sqrt(2 * threshold * (a + 1)) - a / 2
    angle = torch.acos((1 - 27 * threshold * a * (a + 1) / (2 * (a + size) ** 3)).clamp(-1, 1))
    root = 2 / 3 * (a + size) * torch.cos(angle / 3) - 2 * a / 3 + size / 3
    return torch.where(size > edge, x.sign() * root, torch.zeros_like(x))


def rvsm_step(
    loss: Loss, weights: Tensors, *, prox: Prox, size: float, penalty: float, coupling: float
) -> tuple[Tensors, Tensors]:
    """Returns weights after a step of relaxed variable splitting, and their sparse partners before it.

    Minimised is loss(w) + penalty P(u) + coupling/2 |u - w|^2: first u exactly, then w by a gradient step.
    The partners of the last weights, `prox(w, penalty / coupling)`, are what is deployed.

    Raises:
        ConfigError: the coupling is not positive.
    """
    if not coupling > 0:
        raise ConfigError(f"coupling={coupling!r}: must be above 0, or nothing joins weights and partners")
    partners = tuple(prox(w.detach(), penalty / coupling) for w in weights)
    gradient = by_weights(loss, weights, ())
    with torch.no_grad():
        parts = zip(weights, gradient, partners, strict=True)
        return tuple(w - size * (g + coupling * (w - u)) for w, g, u in parts), partners


def _row_lengths(x: Tensor) -> Tensor:
    """Returns the length of each row in a shape that fits x."""
    return x.flatten(1).square().sum(1).sqrt().reshape(-1, *[1] * (x.ndim - 1))
