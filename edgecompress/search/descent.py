"""Steps along gradients of losses that depend on weights and on an architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from edgecompress.errors import ConfigError

Tensors = tuple[Tensor, ...]
Loss = Callable[[Tensors, Tensors], Tensor]
"""Gets weights and architecture, returns a scalar; one that closes over modules may ignore both."""


def by_weights(loss: Loss, weights: Tensors, alpha: Tensors, scale: float = 1.0) -> Tensors:
    """Returns the gradient of `scale` times a loss by the weights."""
    weights = _watched(weights)
    return scaled_gradients(lambda: loss(weights, alpha), weights, scale)


def by_architecture(loss: Loss, weights: Tensors, alpha: Tensors, scale: float = 1.0) -> Tensors:
    """Returns the gradient of `scale` times a loss by the architecture."""
    alpha = _watched(alpha)
    return scaled_gradients(lambda: loss(weights, alpha), alpha, scale)


def by_both(loss: Loss, weights: Tensors, alpha: Tensors, scale: float = 1.0) -> tuple[Tensors, Tensors]:
    """Returns both gradients from one pass."""
    weights, alpha = _watched(weights), _watched(alpha)
    found = scaled_gradients(lambda: loss(weights, alpha), (*weights, *alpha), scale)
    return found[: len(weights)], found[len(weights) :]


def scaled_gradients(value: Callable[[], Tensor], tensors: Sequence[Tensor], scale: float) -> Tensors:
    """Returns `scale` times the gradients of a scalar; zeros where it does not depend on a tensor."""
    if scale == 0:  # what counts nothing is not computed
        return tuple(map(torch.zeros_like, tensors))
    scalar = value()
    if not scalar.requires_grad:
        return tuple(map(torch.zeros_like, tensors))
    found = torch.autograd.grad(scale * scalar, list(tensors), allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(found, tensors, strict=True))


def penalty_gradient(penalty: Callable[[Tensors], Tensor], alpha: Tensors, scale: float) -> Tensors:
    """Returns the gradient of `scale` times a function of the architecture alone."""
    alpha = _watched(alpha)
    return scaled_gradients(lambda: penalty(alpha), alpha, scale)


@torch.no_grad()
def moved(tensors: Sequence[Tensor], gradient: Sequence[Tensor], size: float) -> Tensors:
    """Returns the tensors after a step against the gradient."""
    return tuple(t - size * g for t, g in zip(tensors, gradient, strict=True))


def step_with_(optimiser: Optimizer, tensors: Sequence[Tensor], gradient: Sequence[Tensor]) -> None:
    """Makes one optimiser step along given gradients and leaves none behind.

    Raises:
        ConfigError: a tensor is frozen; a loss of modules would not depend on it and it would never move.
    """
    if not all(tensor.requires_grad for tensor in tensors):
        raise ConfigError("parameters to train must require gradients; some are frozen")
    for tensor, one in zip(tensors, gradient, strict=True):
        tensor.grad = one
    optimiser.step()
    for tensor in tensors:
        tensor.grad = None


def _watched(tensors: Tensors) -> Tensors:
    """Returns the tensors so that gradients reach them: parameters as they are, others as fresh leaves."""
    return tuple(t if t.requires_grad else t.detach().requires_grad_() for t in tensors)
