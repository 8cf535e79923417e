"""Gradient search whose scores are shared by two copies of what little may be trained (RARTS).

Scales, shifts and biases of the supernet, all else being frozen, exist twice: the primary copy learns from
every other image, the auxiliary one from the rest, and each is held near the other. The scores follow both
losses. The copies serve the search alone; the plan is built from the dense model's own weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from edgecompress.errors import ConfigError
from edgecompress.search.descent import Tensors
from edgecompress.search.image_pool import ImagePool, task_loss
from edgecompress.search.mixed_layers import Supernet, in_order
from edgecompress.search.rarts import Lagrangian, Point, StepSizes, half_price_step
from edgecompress.search.theta import Space, gumbel, step_generator
from edgecompress.search.theta_checkpoint import Standing
from edgecompress.search.theta_training import GradientSettings, StepFacts, adam_
from edgecompress.train.images import step_indices
from edgecompress.train.parallel import processes


def rarts_step_(
    standing: Standing,
    supernet: Supernet,
    space: Space,
    pool: ImagePool,
    settings: GradientSettings,
    temperature: float,
    *,
    seed: int,
) -> StepFacts:
    """Changes both copies by a gradient step and the scores by one of Adam, in two passes.

    Both losses count as logarithms, like the cost, so the elasticity means what it does without copies.

    Raises:
        ConfigError: there are several processes.
    """
    if processes() > 1:
        raise ConfigError("optimiser 'rarts' runs in one process; use 'adam' under torchrun")
    noise = settings.noise * gumbel(standing.scores.shape, step_generator(seed, standing.step))
    names, losses = _trained_names(supernet), []

    def loss_on(half: int, weights: Tensors, alpha: Tensors) -> Tensor:
        images, targets = _half(pool, settings, standing.step, seed, half)
        probabilities = space.probabilities(alpha[0] + noise, temperature)
        logits = _run(supernet, dict(zip(names, weights, strict=True)), images, probabilities)
        loss = task_loss(logits, targets) / len(images)
        losses.append(float(loss.detach()))
        return loss.log()

    lagrangian = Lagrangian(
        lambda u, alpha: loss_on(0, u, alpha),
        lambda w, alpha: loss_on(1, w, alpha),
        lam=settings.auxiliary,
        beta=settings.coupling,
    )
    point = Point(_copy(standing, supernet, "u"), _copy(standing, supernet, "w"), (standing.scores,))
    after = half_price_step(lagrangian, point, StepSizes(settings.weight_lr, settings.weight_lr, alpha=1.0))
    by_loss = (standing.scores - after.alpha[0]) / (1 + settings.auxiliary)  # the step was the gradient
    scores = standing.scores.detach().requires_grad_()
    cost = space.expected_cost(space.probabilities(scores + noise, temperature))
    (by_cost,) = torch.autograd.grad(cost.log(), scores)
    _keep_(standing, names, after)
    adam_(standing, by_loss + standing.elasticity * by_cost, settings)
    return StepFacts(sum(losses) / len(losses), by_loss, by_cost)


def _half(
    pool: ImagePool, settings: GradientSettings, step: int, seed: int, half: int
) -> tuple[Tensor, Tensor]:
    """Returns the images of one copy: those with even or odd numbers."""
    own = torch.arange(half, len(pool), 2) if len(pool) > 1 else torch.zeros(1, dtype=torch.long)
    return pool.take(own[step_indices(len(own), -(-settings.batch_images // 2), step, seed)])


def _trained_names(supernet: Supernet) -> list[str]:
    """Returns what is trained: scales and shifts of norms, and biases. They are the vectors."""
    return [name for name, p in supernet.module.named_parameters() if p.ndim == 1]


def _run(
    supernet: Supernet, weights: Mapping[str, Tensor], images: Tensor, probabilities: tuple[Tensor, ...]
) -> Tensor:
    for layer, own in zip(supernet.layers, probabilities, strict=True):
        layer.weights = own
    found: Tensor = functional_call(supernet.module, dict(weights), (in_order(images, supernet.layers),))
    return found


def _copy(standing: Standing, supernet: Supernet, which: str) -> Tensors:
    """Returns one copy; both start as what the supernet has."""
    own = dict(supernet.module.named_parameters())
    names = _trained_names(supernet)
    return tuple(standing.tensors.get(f"{which}.{name}", own[name].detach()) for name in names)


def _keep_(standing: Standing, names: list[str], point: Point) -> None:
    for which, tensors in (("u", point.u), ("w", point.w)):
        found = zip(names, tensors, strict=True)
        standing.tensors.update({f"{which}.{name}": tensor.detach() for name, tensor in found})
