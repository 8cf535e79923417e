"""Trains gates until those of useless units are exactly zero.

The loss is that of the task, or the cross-entropy with the dense network's probabilities, plus an l1 penalty
on all gates. Its proximal map is applied after every step, which makes zeros exact. `joint_search` trains
gates and weights on the same images. `rarts_search` trains two copies of the weights on separate halves and
gates that serve both, so that gates cannot follow what one copy learned by heart.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import SGD

from edgecompress.core.progress import Progress
from edgecompress.core.types import Group
from edgecompress.errors import ConfigError
from edgecompress.nets.gates import gated
from edgecompress.search.descent import Tensors, by_both, step_with_
from edgecompress.search.image_pool import Batch, ImagePool, make_pool, task_loss
from edgecompress.search.rarts import Lagrangian, Optimisers, Point, half_price_step_, soft_threshold
from edgecompress.search.score_contract import ScoreSettings
from edgecompress.train.images import step_indices


@dataclass(frozen=True)
class GateSearch:
    """Where a search for gates ended."""

    alphas: dict[str, Tensor]
    """By name of group; units that are not needed have exact zeros."""
    network: nn.Module
    """The weights the gates were trained with, gates not folded in; in eval mode."""
    losses: tuple[float, ...]
    """Of the task, step by step."""


def joint_search(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Batch],
    settings: ScoreSettings,
    seed: int,
    progress: Progress,
) -> GateSearch:
    """Trains weights and gates together; the given network is left alone.

    Raises:
        ConfigError: a group has no time although others have.
        DataError: there are no images.
    """
    pool, network = make_pool(model, batches), _copy(model, settings)
    thresholds = _thresholds(groups, settings)
    losses: list[float] = []
    with gated(network, groups) as gates:
        alphas, weights = tuple(gates.alphas.values()), _weights(network)
        by_weight = _weight_optimiser(weights, settings, 1.0)
        by_alpha = SGD(alphas, lr=settings.alpha_lr)
        for step in progress.track(range(settings.steps), "joint search for gates"):
            seen = step_indices(len(pool), settings.batch_images, step, seed)
            first, second = by_both(_Loss(network, pool, seen, losses), weights, alphas)
            step_with_(by_weight, weights, first)
            step_with_(by_alpha, alphas, second)
            _shrink_(alphas, thresholds)
    return GateSearch(_detached(gates.alphas), network.eval(), tuple(losses))


def rarts_search(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Batch],
    settings: ScoreSettings,
    seed: int,
    progress: Progress,
) -> GateSearch:
    """Trains gates on two copies of the weights, each with images and batch norm statistics of its own.

    Every step takes two passes. The gates' gradient is divided by the weight of both losses together, so
    learning rate and penalty mean what they do in `joint_search`. The primary copy is returned.

    Raises:
        ConfigError: a group has no time although others have.
        DataError: there are fewer than two images.
    """
    pool = make_pool(model, batches)
    halves = split_in_half(len(pool), seed)
    u_net, w_net = _copy(model, settings), _copy(model, settings)
    losses: list[float] = []
    with gated(u_net, groups) as gates, gated(w_net, groups, gates.alphas):
        point = Point(_weights(u_net), _weights(w_net), tuple(gates.alphas.values()))
        total = 1 + settings.auxiliary
        optimisers = Optimisers(
            u=_weight_optimiser(point.u, settings, 1.0),
            w=_weight_optimiser(point.w, settings, max(1.0, settings.auxiliary)),
            alpha=SGD(point.alpha, lr=settings.alpha_lr / total),
        )
        for step in progress.track(range(settings.steps), "RARTS search for gates"):
            seen = [h[step_indices(len(h), settings.batch_images, step, seed)] for h in halves]
            lagrangian = Lagrangian(
                primary=_Loss(u_net, pool, seen[0], losses),
                auxiliary=_Loss(w_net, pool, seen[1], []),
                lam=settings.auxiliary,
                beta=settings.coupling,
            )
            half_price_step_(lagrangian, point, optimisers)
            _shrink_(point.alpha, _thresholds(groups, settings))
    return GateSearch(_detached(gates.alphas), u_net.eval(), tuple(losses))


def split_in_half(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the numbers of the primary and of the auxiliary images: every image is in one of them.

    Raises:
        ConfigError: there are fewer than two.
    """
    if count < 2:
        raise ConfigError(f"RARTS needs images for both copies; there is {count}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: count // 2].sort().values, order[count // 2 :].sort().values


def l1_weights(groups: Sequence[Group], unit_ms: Mapping[str, float] | None) -> dict[str, float]:
    """Returns how much each group's gates are penalised; the mean over all units is 1.

    Raises:
        ConfigError: a group has no time, or none of them takes any.
    """
    if unit_ms is None:
        return {group.name: 1.0 for group in groups}
    for group in groups:
        if not unit_ms.get(group.name, -1.0) >= 0:
            raise ConfigError(f"{group.name}: needs the time of one unit, found {unit_ms.get(group.name)!r}")
    mean = sum(g.width * unit_ms[g.name] for g in groups) / max(1, sum(g.width for g in groups))
    if groups and mean == 0:
        raise ConfigError("no group takes any time; the penalty would be empty")
    return {group.name: unit_ms[group.name] / mean for group in groups}


@dataclass(frozen=True)
class _Loss:
    """Mean loss of some images; weights and gates are those in the network, which optimisers change."""

    network: nn.Module
    pool: ImagePool
    seen: Tensor
    losses: list[float]

    def __call__(self, _: Tensors, __: Tensors) -> Tensor:
        images, targets = self.pool.take(self.seen)
        loss = task_loss(self.network(images), targets) / len(images)
        self.losses.append(float(loss.detach()))
        return loss


def _copy(model: nn.Module, settings: ScoreSettings) -> nn.Module:
    network = copy.deepcopy(model).requires_grad_(settings.train_weights)
    return network.train(settings.train_statistics)


def _weights(network: nn.Module) -> Tensors:
    return tuple(p for p in network.parameters() if p.requires_grad)


def _weight_optimiser(weights: Tensors, settings: ScoreSettings, slower: float) -> SGD:
    """Returns the optimiser of one copy; one without weights still needs a tensor to hold."""
    return SGD(
        weights or (torch.zeros(0),),
        lr=settings.lr / slower,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def _thresholds(groups: Sequence[Group], settings: ScoreSettings) -> list[float]:
    weights = l1_weights(groups, settings.unit_ms)
    return [settings.alpha_lr * settings.l1 * weights[group.name] for group in groups]


@torch.no_grad()
def _shrink_(alphas: Tensors, thresholds: Sequence[float]) -> None:
    for alpha, threshold in zip(alphas, thresholds, strict=True):
        alpha.copy_(soft_threshold(alpha, threshold))


def _detached(alphas: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: alpha.detach().clone() for name, alpha in alphas.items()}
