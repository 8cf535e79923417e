"""The search of the SVD-NAS paper as published, the baseline of `supernet.py`.

Per step and layer two candidates are drawn without replacement from softmax(theta / T), their outputs mixed
image by image with Gumbel-softmax masks: two convolutions per layer, and of all candidates only those two get
a gradient. After each step their scores are shifted so that their joint probability is what it was, as in
ProxylessNAS. Scores start equal, and the space is every family at costs in steps of 5 %.

As published: give it `fill` of plain factors. Not as published, in its favour: kernels are made when drawn
instead of kept (6.6 GB for ResNet-18), the elasticity is steered to the limit unless given, and the final
plan is the most probable one within the limit rather than picked by hand.

Reference: Yu and Bouganis, SVD-NAS, WACV 2023, and its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.methods.contract import Fill
from edgecompress.nets.modules import replace_
from edgecompress.search.contract import Choices, Problem
from edgecompress.search.image_pool import Batch, ImagePool, task_loss
from edgecompress.search.mixed_layers import MixedLayer, make_supernet
from edgecompress.search.mixture import mixed_kernel
from edgecompress.search.supernet import run_search
from edgecompress.search.theta import Space, gumbel, step_generator
from edgecompress.search.theta_checkpoint import Standing
from edgecompress.search.theta_training import (
    Found,
    GradientSettings,
    Step,
    StepFacts,
    adam_,
)
from edgecompress.train.images import step_indices
from edgecompress.train.parallel import add_up_, own_share

PUBLISHED = GradientSettings(
    steps=78_125,  # 100 epochs of 50,000 images
    weight_decay=5e-4,
    gamma=(0.5, 0.9, 0.05),
    max_families=None,
    least_candidates=1 << 30,  # none is left out
)
"""The settings of the paper for ResNet-18; fewer steps are a shorter search with the same temperatures."""


def search_by_sampling(
    model: nn.Module,
    problem: Problem,
    fill: Fill,
    batches: Sequence[Batch],
    settings: GradientSettings,
    *,
    start: Choices | None = None,
    seed: int = 0,
    progress: Progress = NO_PROGRESS,
    checkpoint: Path | None = None,
) -> Found:
    """Searches as the paper does; arguments and errors are those of `search_by_gradient`.

    A plan to start from is kept among the candidates, but all scores start equal.
    """

    def prepare(space: Space, pool: ImagePool) -> Step:
        supernet = sampled_net(model, space, fill, pool.input_shape)

        def step(now: Standing, temperature: float) -> StepFacts:
            return sampling_step_(now, supernet, space, pool, settings, temperature, seed=seed)

        return step

    return run_search(
        model,
        problem,
        batches,
        settings,
        prepare,
        lambda space: torch.ones(sum(space.sizes), dtype=torch.float64),
        start=start,
        seed=seed,
        progress=progress,
        checkpoint=checkpoint,
    )


class SampledLayer(nn.Module):
    """A layer that runs two of its candidates; which, and each image's masks, are set before each pass."""

    def __init__(self, mixed: MixedLayer) -> None:
        super().__init__()
        self.mixture, self.bias = mixed.mixture, mixed.bias
        self.drawn, self.masks = torch.zeros(1, dtype=torch.long), torch.ones(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the outputs of both, mixed image by image."""
        parts = [self._one(x, place) for place in self.drawn.tolist()]
        masks = self.masks.to(x.dtype).reshape(-1, len(parts), *[1] * (x.ndim - 1))
        mixed = sum(masks[:, i] * part for i, part in enumerate(parts))
        if self.bias is None:
            return cast(Tensor, mixed)
        return mixed + (self.bias if self.mixture.op.kind == "linear" else self.bias[:, None, None])

    def _one(self, x: Tensor, place: int) -> Tensor:
        op = self.mixture.op
        weights = F.one_hot(torch.tensor(place), self.mixture.size).to(x.dtype)
        kernel = mixed_kernel(self.mixture, weights).contiguous()  # the order the authors' code works in
        if op.kind == "linear":
            return F.linear(x, kernel.flatten(1))
        return F.conv2d(x, kernel, None, op.stride, op.padding, op.dilation)


@dataclass(frozen=True)
class SampledNet:
    """A frozen copy of the model with its sampled layers, in the order of the problem's options."""

    module: nn.Module
    layers: tuple[SampledLayer, ...]


def sampled_net(model: nn.Module, space: Space, fill: Fill, input_shape: tuple[int, int, int]) -> SampledNet:
    """Returns the model with sampled layers."""
    mixed = make_supernet(model, space.problem, fill, input_shape, fold=False)
    layers = tuple(SampledLayer(layer) for layer in mixed.layers)
    for options, layer in zip(space.problem.options, layers, strict=True):
        replace_(mixed.module, options.layer.name, layer)
    return SampledNet(mixed.module, layers)


def sampling_step_(
    standing: Standing,
    net: SampledNet,
    space: Space,
    pool: ImagePool,
    settings: GradientSettings,
    temperature: float,
    *,
    seed: int,
) -> StepFacts:
    """Changes the scores by one step; two candidates of every layer get a gradient."""
    indices = step_indices(len(pool), settings.batch_images, standing.step, seed)
    before, scores = standing.scores.clone(), standing.scores.detach().requires_grad_()
    draws = _draws(space, scores, len(indices), temperature, step_generator(seed, standing.step))
    for layer, (drawn, masks) in zip(net.layers, draws, strict=True):
        layer.drawn, layer.masks = drawn, own_share(masks)
    images, targets = pool.take(own_share(indices))
    loss = task_loss(net.module(images), targets) / len(indices)
    (by_loss,) = torch.autograd.grad(loss, scores, retain_graph=True)
    summed = torch.cat([by_loss, loss.detach().double()[None]])
    add_up_(summed)
    cost = _drawn_cost(space, draws)
    (by_cost,) = torch.autograd.grad(cost.log(), scores)
    factor = (float(cost.detach()) / space.dense_cost) ** standing.elasticity
    adam_(standing, factor * (summed[:-1] + summed[-1] * standing.elasticity * by_cost), settings)
    _keep_mass_(space, standing.scores, before, [drawn for drawn, _ in draws], temperature)
    return StepFacts(float(summed[-1]), summed[:-1] / summed[-1], by_cost)


Draw = tuple[Tensor, Tensor]
"""Two places of a layer, and (images, 2) masks over them."""


def _draws(
    space: Space, scores: Tensor, count: int, temperature: float, generator: torch.Generator
) -> list[Draw]:
    draws = []
    for own in space.split(scores):
        chances = (own.detach() / temperature).softmax(0)
        drawn = torch.multinomial(chances, min(2, len(own)), generator=generator)
        noise = gumbel((count, len(drawn)), generator)
        draws.append((drawn, ((own[drawn] + noise) / temperature).softmax(1)))
    return draws


def _drawn_cost(space: Space, draws: Sequence[Draw]) -> Tensor:
    """Returns the cost of the whole model, averaged over the images' masks."""
    each = [
        (masks @ cost[drawn]).mean()
        for (drawn, masks), cost in zip(draws, space.split(space.costs), strict=True)
    ]
    return space.problem.fixed_cost + torch.stack(each).sum()


def _keep_mass_(
    space: Space, scores: Tensor, before: Tensor, drawn: Sequence[Tensor], temperature: float
) -> None:
    """Shifts the scores of the drawn so that the sum of their exponentials is what it was."""
    for own, old, places in zip(space.split(scores), space.split(before), drawn, strict=True):
        mass = [(part[places] / temperature).logsumexp(0) for part in (own, old)]
        own[places] -= temperature * (mass[0] - mass[1])
