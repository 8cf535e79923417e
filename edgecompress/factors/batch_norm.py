"""Corrects batch-norm statistics for what compression changed, first layer to last.

Replacing them by the statistics of a few hundred images costs good factors points: the stored ones
come from the whole, augmented training set. So only the *difference* between the compressed and the
dense network on the same images is applied: the mean moves by the difference of the two means, the
variance is scaled by the ratio of the two variances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from edgecompress.nets.lockstep import run_in_step
from edgecompress.nets.modules import layer_named

MAX_VARIANCE_RATIO = 4.0
"""Channels that are all but constant have ratios that mean nothing."""
LEAST_VARIANCE = 1e-12
"""Added to both variances: a channel that is constant in both networks has the ratio one."""


Rows = Mapping[str, Sequence[int]]
"""Outputs of the dense module that stayed, by name of a module that got narrower."""
NOTHING_NARROWED: Rows = {}


def rows_of(narrowed: Rows, name: str) -> Tensor | slice:
    """Returns which outputs of a dense module a network still has there."""
    return torch.as_tensor(narrowed[name]) if name in narrowed else slice(None)


def correct_statistics_(
    compressed: nn.Module, dense: nn.Module, batches: Sequence[Tensor], *, narrowed: Rows = NOTHING_NARROWED
) -> int:
    """Corrects every batch norm of `compressed` and returns how many there are.

    Each one is measured after those before it have been corrected, and counted from the dense network's
    statistics: repair has moved some means already, and would move them twice.
    """
    names = [
        name
        for name, module in compressed.named_modules()
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None
    ]

    def visit(name: str, inputs: list[list[Tensor]]) -> None:
        ours, theirs = (cast(nn.BatchNorm2d, layer_named(one, name)) for one in (compressed, dense))
        assert ours.running_mean is not None and theirs.running_mean is not None
        assert ours.running_var is not None and theirs.running_var is not None
        rows = rows_of(narrowed, name)
        mean, variance = _population(inputs[0])
        dense_mean, dense_variance = (one[rows] for one in _population(inputs[1]))
        ratio = (variance + LEAST_VARIANCE) / (dense_variance + LEAST_VARIANCE)
        ratio = ratio.clamp(1 / MAX_VARIANCE_RATIO, MAX_VARIANCE_RATIO)
        ours.running_mean.copy_(theirs.running_mean[rows] + mean - dense_mean)
        ours.running_var.copy_(theirs.running_var[rows] * ratio)

    run_in_step([compressed, dense], names, batches, visit)
    return len(names)


def _population(batches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance per channel over all batches, in float64."""
    count = sum(x.numel() // x.shape[1] for x in batches)
    mean = torch.stack([x.double().sum((0, 2, 3)) for x in batches]).sum(0) / count
    centred = [(x.double() - mean[:, None, None]).square().sum((0, 2, 3)) for x in batches]
    return mean, torch.stack(centred).sum(0) / count
