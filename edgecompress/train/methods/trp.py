"""Trained rank pruning: weights are cut to low rank every few steps, so that training gets used to it.

After every `refresh` steps each weight matrix keeps the least rank that holds a share of its energy. A
penalty on the sum of singular values draws more of them to 0; its subgradient, U V^T of the values that were
kept, is that of the last cut. With `refresh` 1 both are as published.

Reference: Xu et al., TRP: Trained Rank Pruning for Efficient Deep Neural Networks, IJCAI 2020.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgecompress.errors import ConfigError
from edgecompress.train.contract import Batch, Course, MethodOptions, Objective, TrainMethod, backward_once
from edgecompress.train.parallel import processes
from edgecompress.train.svd_gradient import Decomposition, cut, decompose
from edgecompress.train.truncation import MatrixWeight, energy_rank, matrix_weights


class Penalised(nn.Module):
    """A network with the subgradients of the nuclear norms of its weights."""

    def __init__(self, network: nn.Module, weights: Sequence[MatrixWeight]) -> None:
        super().__init__()
        self.network = network
        for place, one in enumerate(weights):
            self.register_buffer(f"direction{place}", torch.zeros_like(one.weight))  # a checkpoint holds it

    def forward(self, images: Tensor) -> Tensor:
        """Returns what the network says."""
        answers: Tensor = self.network(images)
        return answers


def begin(network: nn.Module, options: MethodOptions) -> Course:
    """Returns the course of a network whose weights are cut again and again.

    Raises:
        ConfigError: an option is out of range.
        ModelError: the network has no weight that could be cut.
    """
    _check(options)
    weights = matrix_weights(network, options.mode)
    held = Penalised(network, weights)

    def backward(objective: Objective, batch: Batch) -> Tensor:
        loss = backward_once(network, objective, batch)
        for place, one in enumerate(weights):
            if one.weight.grad is not None:  # gradients of all processes will be added up
                one.weight.grad += held.get_buffer(f"direction{place}") * (options.nuclear / processes())
        return loss

    def after_step(step: int) -> None:
        if (step + 1) % options.refresh == 0:
            for place, direction in enumerate(cut_to_energy_(weights, options.energy)):
                held.get_buffer(f"direction{place}").copy_(direction)

    def finish() -> nn.Module:
        finished = copy.deepcopy(network).eval()
        cut_to_energy_(matrix_weights(finished, options.mode), options.energy)
        return finished

    return Course(held, backward, finish, after_step, keeps_last=True)


def _check(options: MethodOptions) -> None:
    if not 0 < options.energy <= 1:
        raise ConfigError(f"energy {options.energy:g}: must be above 0, 1 at most")
    if not options.nuclear >= 0:
        raise ConfigError(f"weight {options.nuclear:g} of the sum of singular values: must be 0 or more")
    if options.refresh < 1:
        raise ConfigError(f"refresh {options.refresh}: must be at least 1")


@torch.no_grad()
def cut_to_energy_(weights: Sequence[MatrixWeight], share: float) -> list[Tensor]:
    """Cuts every weight to the least rank with that share of its energy; returns U V^T of what was kept.

    Weights that cannot be decomposed stay, and have no direction.
    """
    return [_cut_(one, share) for one in weights]


def _cut_(one: MatrixWeight, share: float) -> Tensor:
    parts = decompose(one.matrix())
    if parts is None:
        return torch.zeros_like(one.weight)
    rank = energy_rank(parts.values, share)
    one.weight.copy_(one.values(cut(parts, rank)))
    flat = Decomposition(parts.left, torch.ones_like(parts.values), parts.right)
    return one.values(cut(flat, rank))


METHOD = TrainMethod(
    "trp",
    "weights cut to an energy every few steps, singular values penalised",
    "Xu et al., IJCAI 2020",
    begin,
)
