"""Batch norms of several processes as if one had seen the whole batch.

torch's own synchronised batch norm needs GPUs; over gloo, sums that gradients flow through do the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgecompress.train.parallel import processes


@contextlib.contextmanager
def synchronised_norms(network: nn.Module) -> Iterator[None]:
    """Makes batch norms in training mode use the statistics of all processes' images while it lasts."""
    norms = [one for one in network.modules() if isinstance(one, _BatchNorm)] if processes() > 1 else []
    for norm in norms:
        norm.forward = partial(_forward, norm)  # type: ignore[method-assign]  # of this one only, for now
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


class _Sum(torch.autograd.Function):
    """The sum over all processes; each uses it for the loss of all, so gradients are added up as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401 - torch's own type
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401
        return _Sum.forward(ctx, gradient)


def _added_up(x: Tensor) -> Tensor:
    """Returns the sum over all processes; gradients flow back to each."""
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]
    return total


def _forward(norm: _BatchNorm, x: Tensor) -> Tensor:
    if not norm.training:
        usual: Tensor = type(norm).forward(norm, x)
        return usual
    axes = [axis for axis in range(x.ndim) if axis != 1]
    count = float(x.numel() // x.shape[1])
    total = _added_up(torch.cat([x.sum(axes), x.new_tensor([count])]))
    whole, mean = total[-1].detach(), total[:-1] / total[-1].detach()
    shape = [1, -1, *[1] * (x.ndim - 2)]
    centred = x - mean.view(shape)
    variance = _added_up(centred.square().sum(axes)) / whole
    _track_(norm, mean.detach(), variance.detach() * whole / (whole - 1).clamp(min=1))
    scaled = centred * (variance + norm.eps).rsqrt().view(shape)
    if not norm.affine:
        return scaled
    shifted: Tensor = scaled * norm.weight.view(shape) + norm.bias.view(shape)
    return shifted


@torch.no_grad()
def _track_(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None  # comes with the other two
    norm.num_batches_tracked += 1
    part = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, part)
    norm.running_var.lerp_(variance, part)
