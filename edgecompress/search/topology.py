"""Searches the operations of cells by gradient: RARTS, or DARTS of first order as its baseline.

Scores alpha, one per edge and operation, are shared by all cells of a kind; their softmax weighs operations.
With costs, the expected cost of a network drawn from them counts gamma times as much as the loss. Costs are
shares, so gamma has no unit; where it is not given it is chosen so that at the start the cost pulls at the
scores `PULL` times as hard as the loss does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from edgecompress.core.genotype import KINDS, edges_of
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.errors import ModelError
from edgecompress.nets.cell_edges import Stack
from edgecompress.nets.cell_networks import search_network
from edgecompress.search.darts import Bilevel, darts_step_
from edgecompress.search.descent import Loss, Tensors, by_architecture, penalty_gradient
from edgecompress.search.image_pool import ImagePool
from edgecompress.search.rarts import Lagrangian, Optimisers, Point, half_price_step_, softmax_penalty
from edgecompress.train.images import step_indices

Method = Literal["rarts", "darts1"]
LAYOUT = torch.channels_last
"""Of images, and so of all maps: depthwise convolutions of few channels train faster in it."""
PULL = 0.1
"""Little, as the gradient of a batch is mostly noise while that of the cost always points the same way."""
REACH = 3.0
"""How far scores should be able to move in a whole search."""


@dataclass(frozen=True)
class TopologySettings:
    """How to search; as published, but for `alpha_lr` in short searches."""

    method: Method = "rarts"
    steps: int = 60
    batch_images: int = 32
    weight_lr: float = 0.025
    last_weight_lr: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 3e-4
    largest_gradient: float = 5.0
    alpha_lr: float | None = None
    """None: 3e-4 as published, or what lets scores move by `REACH` in few steps, at most 0.05."""
    alpha_decay: float = 1e-3
    auxiliary: float = 10.0
    """Weight of the loss of the auxiliary weights, whose learning rate is so many times smaller."""
    coupling: float = 4.0
    """Of the two sets of weights; times the learning rate, over 1 - momentum, it should not exceed 1."""
    gamma: float | None = None
    """Weight of the expected cost; None: chosen by `PULL`."""

    @property
    def score_lr(self) -> float:
        """The learning rate of the scores."""
        return max(3e-4, min(0.05, REACH / self.steps)) if self.alpha_lr is None else self.alpha_lr


@dataclass(frozen=True)
class Searched:
    """What a search found."""

    alpha: Tensors
    """Scores (edges, operations) for each kind of cell."""
    network: nn.Module
    """The search network with the primary weights, in eval mode."""
    gamma: float | None
    """Weight of the expected cost; None without costs."""
    losses: tuple[float, ...]
    """Of the primary weights, step by step; for DARTS of what the scores follow."""


@dataclass
class _Losses:
    """Losses of a step, which all see the same two batches."""

    pools: tuple[ImagePool, ImagePool]
    size: int
    seed: int
    step: int = 0
    found: list[float] = field(default_factory=list)

    def of(self, network: nn.Module, half: int) -> Loss:
        """Returns the loss of a network on one half of the images; half 0 is noted."""

        def loss(weights: Tensors, alpha: Tensors) -> Tensor:
            pool = self.pools[half]
            images, labels = pool.take(step_indices(len(pool), self.size, self.step, self.seed))
            images = images.contiguous(memory_format=LAYOUT)
            value = F.cross_entropy(network(images, [one.softmax(-1) for one in alpha]), labels)
            if half == 0:
                self.found[self.step :] = [float(value.detach())]
            return value

        return loss


def new_scores(space: str, operations: int, *, seed: int) -> Tensors:
    """Returns scores near zero, one per edge and operation, for each kind of cell."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(edges_of(space)), operations)
    return tuple((1e-3 * torch.randn(shape, generator=generator)).requires_grad_() for _ in KINDS[space])


def search_topology(
    space: str,
    operations: Sequence[str],
    stack: Stack,
    pools: tuple[ImagePool, ImagePool],
    settings: TopologySettings,
    *,
    costs: Tensors | None = None,
    seed: int = 0,
    progress: Progress = NO_PROGRESS,
) -> Searched:
    """Searches on two halves of labelled images, the first for the primary weights or the scores of DARTS.

    `costs` are shares as `normalised` returns them.

    Raises:
        ModelError: the loss is no longer finite.
    """
    alpha = new_scores(space, len(operations), seed=seed)
    networks = [_network(space, operations, stack, seed + number) for number in range(2)]
    losses = _Losses(pools, settings.batch_images, seed)
    make = _rarts if settings.method == "rarts" else _darts
    step = make(networks, losses, alpha, settings, costs)
    for number in progress.track(range(settings.steps), f"searching with {settings.method}"):
        losses.step = number
        step.take()
        if not math.isfinite(losses.found[-1]):
            raise ModelError(f"step {number + 1}: the loss is not finite; take a smaller learning rate")
    found = tuple(one.detach() for one in alpha)
    return Searched(found, networks[0].eval(), step.gamma, tuple(losses.found))


@dataclass(frozen=True)
class _Step:
    take: Callable[[], None]
    gamma: float | None


def _network(space: str, operations: Sequence[str], stack: Stack, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return search_network(space, operations, stack).train()


def _rarts(
    networks: Sequence[nn.Module],
    losses: _Losses,
    alpha: Tensors,
    settings: TopologySettings,
    costs: Tensors | None,
) -> _Step:
    u, w = (tuple(network.parameters()) for network in networks)
    primary, auxiliary = losses.of(networks[0], 0), losses.of(networks[1], 1)
    lam = settings.auxiliary

    def task() -> Tensors:
        both = by_architecture(primary, u, alpha), by_architecture(auxiliary, w, alpha, lam)
        return tuple(first + second for first, second in zip(*both, strict=True))

    gamma = _gamma(settings, alpha, costs, task)
    penalty = None if costs is None else _penalty(costs)
    lagrangian = Lagrangian(primary, auxiliary, lam, settings.coupling, gamma or 0.0, penalty)
    trained = [_sgd(u, settings), _sgd(w, settings, slower=lam)]
    optimisers = Optimisers(trained[0][0], trained[1][0], _adam(alpha, settings))

    def take() -> None:
        half_price_step_(lagrangian, Point(u, w, alpha), optimisers)
        for _, schedule in trained:
            schedule.step()

    return _Step(take, gamma)


def _darts(
    networks: Sequence[nn.Module],
    losses: _Losses,
    alpha: Tensors,
    settings: TopologySettings,
    costs: Tensors | None,
) -> _Step:
    network = networks[0]
    w = tuple(network.parameters())
    outer, inner = losses.of(network, 0), losses.of(network, 1)
    gamma = _gamma(settings, alpha, costs, lambda: by_architecture(outer, w, alpha))

    def outer_with_cost(weights: Tensors, scores: Tensors) -> Tensor:
        loss = outer(weights, scores)
        return loss if costs is None or gamma is None else loss + gamma * softmax_penalty(scores, costs)

    optimiser, schedule = _sgd(w, settings)
    scores_optimiser = _adam(alpha, settings)

    def take() -> None:
        bilevel = Bilevel(outer_with_cost, inner)
        darts_step_(bilevel, w, alpha, w_optimiser=optimiser, alpha_optimiser=scores_optimiser)
        schedule.step()

    return _Step(take, gamma)


def _penalty(costs: Tensors) -> Callable[[Tensors], Tensor]:
    return lambda alpha: softmax_penalty(alpha, costs)


def _gamma(
    settings: TopologySettings, alpha: Tensors, costs: Tensors | None, task: Callable[[], Tensors]
) -> float | None:
    if costs is None or settings.gamma is not None:
        return None if costs is None else settings.gamma
    pull = _length(penalty_gradient(_penalty(costs), alpha, 1.0))
    return PULL * _length(task()) / pull if pull else 0.0


def _length(tensors: Tensors) -> float:
    return float(torch.stack([one.square().sum() for one in tensors]).sum().sqrt())


def _sgd(
    weights: Tensors, settings: TopologySettings, *, slower: float = 1.0
) -> tuple[Optimizer, CosineAnnealingLR]:
    """Returns an optimiser that cuts long gradients, and its schedule."""
    rate = settings.weight_lr / slower
    optimiser = SGD(weights, rate, momentum=settings.momentum, weight_decay=settings.weight_decay)

    def cut(*_: object) -> None:
        nn.utils.clip_grad_norm_(weights, slower * settings.largest_gradient)

    optimiser.register_step_pre_hook(cut)
    schedule = CosineAnnealingLR(optimiser, settings.steps, settings.last_weight_lr / slower)
    return optimiser, schedule


def _adam(alpha: Tensors, settings: TopologySettings) -> Optimizer:
    return Adam(alpha, settings.score_lr, betas=(0.5, 0.999), weight_decay=settings.alpha_decay)


def train_(
    network: nn.Module,
    pool: ImagePool,
    settings: TopologySettings,
    *,
    seed: int = 0,
    progress: Progress = NO_PROGRESS,
) -> None:
    """Trains a derived network for `settings.steps` steps and leaves it in eval mode."""
    weights = tuple(network.parameters())
    optimiser, schedule = _sgd(weights, settings)
    network.train()
    for step in progress.track(range(settings.steps), "training the network found"):
        images, labels = pool.take(step_indices(len(pool), settings.batch_images, step, seed))
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(network(images), labels))
        optimiser.step()
        schedule.step()
    network.eval()
