"""Statistics of batch norms, found anew on images: what a network of another size needs before it is used.

Scales, shifts and all weights stay. In sequence, every norm is measured while those before it already have
their new statistics, which is exact for these images; one forward pass does, since all batches wait at the
norm being renewed (`nets/lockstep.py`), so all of them are in memory. In one pass, every norm uses the
statistics of the batch it sees while the sums over all batches are gathered: exact for the first norm, close
for the others, and only one batch is in memory at a time.

Reference: Yaguchi et al., Decomposable-Net, IJCAI 2021, for the sequence; slimmable networks take one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgecompress.nets.lockstep import run_in_step
from edgecompress.nets.modules import layer_named


def tracking_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """Returns the batch norms that keep statistics, by name."""
    found = {name: one for name, one in network.named_modules() if isinstance(one, _BatchNorm)}
    return {name: one for name, one in found.items() if one.running_mean is not None}


def recalibrate_(network: nn.Module, batches: Sequence[Tensor]) -> int:
    """Renews the statistics of every norm of a network in eval mode, in sequence; returns how many there are.

    Raises:
        ModelError: the order of layers depends on the images.
    """
    norms = tracking_norms(network)

    def visit(name: str, inputs: list[list[Tensor]]) -> None:
        sums = _Sums()
        for x in inputs[0]:
            sums.add_(x)
        sums.write_(cast(_BatchNorm, layer_named(network, name)))

    run_in_step([network], list(norms), batches, visit)
    return len(norms)


@torch.no_grad()
def recalibrate_in_one_pass_(network: nn.Module, batches: Iterable[Tensor]) -> int:
    """Renews the statistics of every norm in one pass; returns how many there are. Dropout is off."""
    norms = tracking_norms(network)
    sums = {name: _Sums() for name in norms}
    hooks = [
        norm.register_forward_pre_hook(lambda _, x, own=sums[name]: own.add_(x[0]))
        for name, norm in norms.items()
    ]
    network.eval()
    try:
        for norm in norms.values():
            norm.train()  # normalises by the batch
            norm.track_running_stats = False  # and remembers nothing of it, not even how many there were
        for batch in batches:
            network(batch)
    finally:
        network.eval()
        for norm in norms.values():
            norm.track_running_stats = True
        for hook in hooks:
            hook.remove()
    for name, norm in norms.items():
        sums[name].write_(norm)
    return len(norms)


@dataclass
class _Sums:
    """Sums over everything a norm has seen, per channel, in float64."""

    count: int = 0
    first: Tensor | float = 0.0
    second: Tensor | float = 0.0

    def add_(self, x: Tensor) -> None:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        wide = x.double()
        self.count += x.numel() // x.shape[1]
        self.first = self.first + wide.sum(axes)
        self.second = self.second + wide.square().sum(axes)

    def write_(self, norm: _BatchNorm) -> None:
        """Gives a norm the mean and the (biased) variance, unless nothing came by."""
        if not self.count:
            return
        assert norm.running_mean is not None and norm.running_var is not None
        mean = torch.as_tensor(self.first) / self.count
        variance = torch.as_tensor(self.second) / self.count - mean.square()
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance.clamp_min(0))
