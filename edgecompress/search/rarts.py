"""Architecture search without second derivatives: two sets of weights share one architecture.

Primary weights u and auxiliary weights w have the same shapes and each half of the data is seen by one of
them (RARTS: Xue, Qi and Xin, 2020). Minimised is

    Lag(u, w, alpha) = L_p(u, alpha) + lam L_a(w, alpha) + beta/2 |u - w|^2 + gamma P(alpha)

by steps on w, u and alpha in this order, each seeing what the ones before it became. `rarts_step` and
`half_price_step` are plain gradient descent on tensors, for which `step_limits` guarantees descent; the
same names with an underscore train parameters in place with any optimisers, for which nothing is proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from edgecompress.errors import ConfigError
from edgecompress.search.descent import (
    Loss,
    Tensors,
    by_architecture,
    by_both,
    by_weights,
    moved,
    penalty_gradient,
    step_with_,
)

Penalty = Callable[[Tensors], Tensor]
Prox = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Lagrangian:
    """What is minimised. All calls of one step must see the same two batches."""

    primary: Loss
    auxiliary: Loss
    lam: float
    """Weight of the auxiliary loss; the method finds the bilevel optimum only as both grow."""
    beta: float
    """How strongly the two sets of weights are coupled."""
    gamma: float = 0.0
    penalty: Penalty | None = None
    prox: Prox | None = None
    """Takes the place of the penalty's gradient: gets alpha after its step, and step size times gamma.

    For P = |alpha|_1 that is `soft_threshold`: the only way to zeros that are exact.
    """

    def __post_init__(self) -> None:
        if min(self.lam, self.beta, self.gamma) < 0:
            found = f"lam={self.lam!r}, beta={self.beta!r}, gamma={self.gamma!r}"
            raise ConfigError(f"{found}: weights of the Lagrangian must not be negative")


@dataclass(frozen=True)
class Point:
    """Primary weights, auxiliary weights and architecture; `u` and `w` have the same shapes in order."""

    u: Tensors
    w: Tensors
    alpha: Tensors


@dataclass(frozen=True)
class StepSizes:
    """One step size for each of the three."""

    u: float
    w: float
    alpha: float


@dataclass(frozen=True)
class Optimisers:
    """One optimiser for each of the three, over exactly the tensors of a `Point`."""

    u: Optimizer
    w: Optimizer
    alpha: Optimizer


def lagrangian_value(lagrangian: Lagrangian, point: Point) -> Tensor:
    """Returns what is minimised, differentiable in all of the point's tensors."""
    total = lagrangian.primary(point.u, point.alpha)
    total = total + lagrangian.lam * lagrangian.auxiliary(point.w, point.alpha)
    apart = sum(((u - w) ** 2).sum() for u, w in zip(point.u, point.w, strict=True))
    total = total + lagrangian.beta / 2 * apart
    if lagrangian.penalty is not None:
        total = total + lagrangian.gamma * lagrangian.penalty(point.alpha)
    return total


def rarts_step(lagrangian: Lagrangian, point: Point, sizes: StepSizes) -> Point:
    """Returns the point after gradient steps on w, u and alpha: four passes forward and backward."""
    w = moved(point.w, _w_gradient(lagrangian, point), sizes.w)
    u = moved(point.u, _u_gradient(lagrangian, Point(point.u, w, point.alpha)), sizes.u)
    gradient = _alpha_gradient(lagrangian, Point(u, w, point.alpha))
    return Point(u, w, _shrunk(lagrangian, moved(point.alpha, gradient, sizes.alpha), sizes.alpha))


def half_price_step(lagrangian: Lagrangian, point: Point, sizes: StepSizes) -> Point:
    """Returns the point after steps that take alpha's gradient along with those of w and u: two passes.

    Alpha's gradient is thus at the old weights, and larger steps are allowed than for `rarts_step`.
    """
    by_w, first = by_both(lagrangian.auxiliary, point.w, point.alpha, lagrangian.lam)
    w = moved(point.w, _coupled(by_w, point.w, point.u, lagrangian.beta), sizes.w)
    by_u, second = by_both(lagrangian.primary, point.u, point.alpha)
    u = moved(point.u, _coupled(by_u, point.u, w, lagrangian.beta), sizes.u)
    gradient = _sum(first, second, _by_penalty(lagrangian, point.alpha))
    return Point(u, w, _shrunk(lagrangian, moved(point.alpha, gradient, sizes.alpha), sizes.alpha))


def rarts_step_(lagrangian: Lagrangian, point: Point, optimisers: Optimisers) -> None:
    """Trains the point's parameters in place by one step of each optimiser, in the order w, u, alpha."""
    step_with_(optimisers.w, point.w, _w_gradient(lagrangian, point))
    step_with_(optimisers.u, point.u, _u_gradient(lagrangian, point))
    step_with_(optimisers.alpha, point.alpha, _alpha_gradient(lagrangian, point))
    _shrink_(lagrangian, optimisers.alpha)


def half_price_step_(lagrangian: Lagrangian, point: Point, optimisers: Optimisers) -> None:
    """Trains the point's parameters in place with two passes instead of four."""
    by_w, first = by_both(lagrangian.auxiliary, point.w, point.alpha, lagrangian.lam)
    step_with_(optimisers.w, point.w, _coupled(by_w, point.w, point.u, lagrangian.beta))
    by_u, second = by_both(lagrangian.primary, point.u, point.alpha)
    step_with_(optimisers.u, point.u, _coupled(by_u, point.u, point.w, lagrangian.beta))
    gradient = _sum(first, second, _by_penalty(lagrangian, point.alpha))
    step_with_(optimisers.alpha, point.alpha, gradient)
    _shrink_(lagrangian, optimisers.alpha)


def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """Returns the minimiser of 1/2 |y - x|^2 + threshold |y|_1: towards zero by `threshold`, not past it."""
    return x.sign() * (x.abs() - threshold).clamp(min=0)


def step_limits(lipschitz: float, lam: float, beta: float, gamma: float = 0.0) -> StepSizes:
    """Returns the sizes below which no `rarts_step` raises the Lagrangian.

    `lipschitz` bounds the Lipschitz constants of the gradients of both losses, each over its weights and
    alpha together, and of the penalty. A penalty with a prox counts as gamma = 0.
    """
    return StepSizes(
        u=1 / (beta / 2 + lipschitz),
        w=_inverse(beta / 2 + lam * lipschitz),
        alpha=1 / ((1 + lam + gamma / 2) * lipschitz),
    )


def decrease_limits(lipschitz: float, lam: float, beta: float, gamma: float = 0.0) -> StepSizes:
    """Returns half of `step_limits`: sizes below which the fall is at least `least_decrease` |change|^2."""
    limits = step_limits(lipschitz, lam, beta, gamma)
    return StepSizes(limits.u / 2, limits.w / 2, limits.alpha / 2)


def least_decrease(lipschitz: float, lam: float, beta: float, gamma: float = 0.0) -> float:
    """Returns by how much the Lagrangian falls per squared length of a step within `decrease_limits`."""
    limits = decrease_limits(lipschitz, lam, beta, gamma)
    return min(1 / limits.u, 1 / limits.w, 1 / limits.alpha) / 2


def half_price_limits(lipschitz: float, lam: float, beta: float, gamma: float = 0.0) -> StepSizes:
    """Returns the sizes below which no `half_price_step` raises the Lagrangian."""
    return StepSizes(
        u=2 / (beta + lipschitz),
        w=_inverse((beta + lam * lipschitz) / 2),
        alpha=2 / ((1 + lam + gamma) * lipschitz),
    )


def softmax_penalty(alpha: Tensors, costs: Tensors) -> Tensor:
    """Returns the expected cost: each row of alpha picks one of its options with softmax probability."""
    rows = [(a.softmax(-1) * c).sum() for a, c in zip(alpha, costs, strict=True)]
    return torch.stack(rows).sum()


def softmax_penalty_lipschitz(costs: Tensors) -> float:
    """Returns a Lipschitz constant of the gradient of `softmax_penalty`.

    Rows do not touch each other, so the widest one counts. Two options attain spread / (3 sqrt 3); that
    more options stay below it is known from experiments only.
    """
    return max(float((c.amax(-1) - c.amin(-1)).max()) for c in costs) / (3 * math.sqrt(3))


def _inverse(x: float) -> float:
    return math.inf if x == 0 else 1 / x


def _w_gradient(lagrangian: Lagrangian, point: Point) -> Tensors:
    by_loss = by_weights(lagrangian.auxiliary, point.w, point.alpha, lagrangian.lam)
    return _coupled(by_loss, point.w, point.u, lagrangian.beta)


def _u_gradient(lagrangian: Lagrangian, point: Point) -> Tensors:
    by_loss = by_weights(lagrangian.primary, point.u, point.alpha)
    return _coupled(by_loss, point.u, point.w, lagrangian.beta)


def _alpha_gradient(lagrangian: Lagrangian, point: Point) -> Tensors:
    by_auxiliary = by_architecture(lagrangian.auxiliary, point.w, point.alpha, lagrangian.lam)
    by_primary = by_architecture(lagrangian.primary, point.u, point.alpha)
    return _sum(by_auxiliary, by_primary, _by_penalty(lagrangian, point.alpha))


def _by_penalty(lagrangian: Lagrangian, alpha: Tensors) -> Tensors:
    if lagrangian.penalty is None or lagrangian.prox is not None:
        return tuple(map(torch.zeros_like, alpha))
    return penalty_gradient(lagrangian.penalty, alpha, lagrangian.gamma)


@torch.no_grad()
def _coupled(gradient: Tensors, own: Tensors, other: Tensors, beta: float) -> Tensors:
    return tuple(g + beta * (a - b) for g, a, b in zip(gradient, own, other, strict=True))


def _sum(*parts: Tensors) -> Tensors:
    return tuple(torch.stack(same).sum(0) for same in zip(*parts, strict=True))


def _shrunk(lagrangian: Lagrangian, alpha: Tensors, size: float) -> Tensors:
    if lagrangian.prox is None:
        return alpha
    return tuple(lagrangian.prox(a, size * lagrangian.gamma) for a in alpha)


@torch.no_grad()
def _shrink_(lagrangian: Lagrangian, optimiser: Optimizer) -> None:
    """Applies the prox by the learning rate of each group: exact for SGD without momentum."""
    if lagrangian.prox is None:
        return
    for group in optimiser.param_groups:
        for alpha in group["params"]:
            alpha.copy_(lagrangian.prox(alpha, float(group["lr"]) * lagrangian.gamma))
