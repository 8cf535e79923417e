"""Decomposable-Net: one network that is good at full rank and when cut to any lower one, without retraining.

Every step runs its batch twice: through the network, and through the same network with every weight matrix W
cut to those of its singular values that are among the largest of the whole network. What share of all values
that is, is drawn anew each step.

    weights:               (1 - l) g + l h |g| / |h|    g, h: gradients by W of the two losses
    biases, batch norms:   (1 - l) g + l h

h comes through the singular value decomposition (`svd_gradient.py`), where it may grow large, hence the
rescaling, layer by layer. Batch norms use the statistics of the pass they are in; only those of the first
are kept.

Decompositions are made every `refresh` steps. In between W is projected on the left singular vectors of the
last one, which is linear, so its gradient is exact as well.

Reference: Yaguchi et al., Decomposable-Net: Scalable Low-Rank Compression for Neural Networks, IJCAI 2021.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from edgecompress.errors import ConfigError
from edgecompress.train.contract import Batch, Course, MethodOptions, Objective, TrainMethod
from edgecompress.train.parallel import add_up_all_, processes, rank
from edgecompress.train.svd_gradient import Decomposition, cut, decompose, pull_back
from edgecompress.train.truncation import MatrixWeight, global_ranks, matrix_weights

LEAST_NORM = 1e-15


class Decomposed(nn.Module):
    """A network with what is kept of the last decompositions of its weights."""

    def __init__(self, network: nn.Module, weights: Sequence[MatrixWeight]) -> None:
        super().__init__()
        self.network = network
        for place, one in enumerate(weights):  # buffers, so that a checkpoint holds them
            zeros = one.weight.detach().new_zeros
            self.register_buffer(f"left{place}", zeros(one.shape[0], one.max_rank))
            self.register_buffer(f"values{place}", zeros(one.max_rank))

    def forward(self, images: Tensor) -> Tensor:
        """Returns what the network says."""
        answers: Tensor = self.network(images)
        return answers

    def keep_(self, parts: Sequence[Decomposition]) -> None:
        """Remembers decompositions."""
        for place, one in enumerate(parts):
            self.get_buffer(f"left{place}").copy_(one.left)
            self.get_buffer(f"values{place}").copy_(one.values)


@dataclass(frozen=True)
class Cut:
    """A weight cut to a rank."""

    weight: MatrixWeight
    matrix: Tensor
    pull_back: Callable[[Tensor], Tensor]
    """Takes the gradient by the cut matrix to that by the whole one."""


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    held: Decomposed
    weights: tuple[MatrixWeight, ...]
    options: MethodOptions


def begin(network: nn.Module, options: MethodOptions) -> Course:
    """Returns the course of a network that is trained at all ranks.

    Raises:
        ConfigError: an option is out of range.
        ModelError: the network has no weight that could be cut.
    """
    _check(options)
    weights = matrix_weights(network, options.mode)
    task = Task(Decomposed(network, weights), weights, options)
    return Course(
        task.held,
        partial(_backward, task),
        lambda: copy.deepcopy(network).eval(),
        summed=True,
        keeps_last=True,
    )


def _check(options: MethodOptions) -> None:
    if not 0 < options.smallest <= options.largest <= 1:
        raise ConfigError(
            f"shares of singular values from {options.smallest:g} to {options.largest:g}: "
            "give shares above 0, the smaller first, 1 at most"
        )
    if not 0 <= options.low_rank_share <= 1:
        raise ConfigError(f"low-rank share {options.low_rank_share:g}: must be between 0 and 1")
    if not 0 < options.low_rank_images <= 1:
        raise ConfigError(f"low-rank images {options.low_rank_images:g}: must be above 0, 1 at most")
    for what, number in (("least rank", options.least_rank), ("refresh", options.refresh)):
        if number < 1:
            raise ConfigError(f"{what} {number}: must be at least 1")


def _backward(task: Task, objective: Objective, batch: Batch) -> Tensor:
    """Adds the gradient of a step, of all processes, to `.grad`; returns this process's part of the loss."""
    network, share = task.held.network, task.options.low_rank_share
    trained = [one for one in network.parameters() if one.requires_grad]
    loss, found = _gradients(network, trained, objective, batch)
    cuts = None if share == 0 else cuts_of(task, batch.step)
    if cuts is not None:
        part = _first_images(batch, task.options.low_rank_images)
        with buffers_kept(network), weights_cut(cuts):
            low_loss, low = _gradients(network, trained, objective, part)
        found = _mixed(trained, found, low, cuts, share)
        loss = (1 - share) * loss + share * low_loss
    for weight, gradient in zip(trained, found, strict=True):
        if gradient is not None:
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
    return loss


def _gradients(
    network: nn.Module, trained: Sequence[nn.Parameter], objective: Objective, batch: Batch
) -> tuple[Tensor, list[Tensor | None]]:
    """Returns this process's part of the mean loss, and the gradients of the whole of it."""
    loss = objective(network, batch) / batch.whole
    found: list[Tensor | None] = [*torch.autograd.grad(loss, trained, allow_unused=True)]
    add_up_all_([one for one in found if one is not None])
    return loss.detach(), found


def _mixed(
    trained: Sequence[nn.Parameter],
    full: Sequence[Tensor | None],
    low: Sequence[Tensor | None],
    cuts: Sequence[Cut],
    share: float,
) -> list[Tensor | None]:
    """Returns the gradients of a step, from those of its two passes."""
    by_weight = {id(one.weight.weight): one for one in cuts}
    mixed: list[Tensor | None] = []
    for weight, g, h in zip(trained, full, low, strict=True):
        if g is None or h is None:
            mixed.append(g)
            continue
        one = by_weight.get(id(weight))
        mixed.append((1 - share) * g + share * (h if one is None else rebalanced(pulled_back(one, h), g)))
    return mixed


def pulled_back(one: Cut, gradient: Tensor) -> Tensor:
    """Returns the gradient by a weight, given that by the cut one."""
    return one.weight.values(one.pull_back(one.weight.matrix(gradient)))


def rebalanced(gradient: Tensor, like: Tensor) -> Tensor:
    """Returns a gradient made as long as another one."""
    wanted, length = (torch.linalg.vector_norm(one) for one in (like, gradient))
    scaled: Tensor = gradient * (wanted / length.clamp_min(LEAST_NORM))
    return scaled


def cuts_of(task: Task, step: int) -> list[Cut] | None:
    """Returns every weight cut to the ranks of a step; None where it can only be an ordinary one."""
    share = drawn_share(task.options, step)
    if step % task.options.refresh:
        return _projected_cuts(task, share)
    parts = [found for one in task.weights if (found := decompose(one.matrix())) is not None]
    if len(parts) < len(task.weights):  # where weights are no longer finite, the loop will see
        return None
    task.held.keep_(parts)
    ranks = global_ranks([one.values for one in parts], share, task.options.least_rank)
    return [_exact_cut(*each) for each in zip(task.weights, parts, ranks, strict=True)]


def drawn_share(options: MethodOptions, step: int) -> float:
    """Returns the share of all singular values that a step keeps."""
    generator = torch.Generator().manual_seed((options.seed * 1_000_003 + step) * 7919 + 2)
    drawn = float(torch.rand((), generator=generator, dtype=torch.float64))
    return options.smallest + (options.largest - options.smallest) * drawn


def _exact_cut(weight: MatrixWeight, parts: Decomposition, rank: int) -> Cut:
    return Cut(weight, cut(parts, rank), lambda gradient: pull_back(gradient, parts, rank))


def _projected_cuts(task: Task, share: float) -> list[Cut] | None:
    values = [task.held.get_buffer(f"values{place}") for place in range(len(task.weights))]
    if not any(bool(one.any()) for one in values):  # nothing could be decomposed so far
        return None
    ranks = global_ranks(values, share, task.options.least_rank)
    bases = [task.held.get_buffer(f"left{place}")[:, :rank] for place, rank in enumerate(ranks)]
    return [_projected_cut(one, basis) for one, basis in zip(task.weights, bases, strict=True)]


def _projected_cut(weight: MatrixWeight, basis: Tensor) -> Cut:
    def project(matrix: Tensor) -> Tensor:
        return basis @ (basis.mT @ matrix)

    return Cut(weight, project(weight.matrix()), project)  # a projection is its own adjoint


@contextlib.contextmanager
def weights_cut(cuts: Sequence[Cut]) -> Iterator[None]:
    """Puts cut weights in the place of whole ones while it lasts."""
    whole = [one.weight.weight.data for one in cuts]
    try:
        for one in cuts:
            one.weight.weight.data = one.weight.values(one.matrix).contiguous()
        yield
    finally:
        for one, data in zip(cuts, whole, strict=True):
            one.weight.weight.data = data


@contextlib.contextmanager
def buffers_kept(network: nn.Module) -> Iterator[None]:
    """Undoes what passes do to running statistics."""
    before = [(one, one.clone()) for one in network.buffers()]
    try:
        yield
    finally:
        for one, value in before:
            one.copy_(value)


def _first_images(batch: Batch, share: float) -> Batch:
    """Returns the first images of the whole batch, those of them that this process has."""
    whole = math.ceil(share * batch.whole)
    own = len(range(rank(), whole, processes()))  # image i is with process i modulo their number
    labels = None if batch.labels is None else batch.labels[:own]
    return replace(batch, images=batch.images[:own], labels=labels, whole=whole)


METHOD = TrainMethod(
    "decomposable",
    "good at full rank and at any lower one: a second, low-rank pass per step",
    "Yaguchi et al., IJCAI 2021",
    begin,
)
