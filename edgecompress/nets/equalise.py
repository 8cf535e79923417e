"""Equalises the channels between the layers of low-rank chains, so that int8 serves all of them alike.

An int8 tensor has one scale for all its channels. Between two factors the channels have very unlike
ranges, as unlike as the singular values. Nothing stands there but the next linear operator, so a channel
may be multiplied by any number that the next layer divides by. Around a ReLU the same is done by Nagel et
al., "Data-free quantization through weight equalization and bias correction", 2019.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from edgecompress.errors import DataError, UnsupportedLayer
from edgecompress.nets.modules import op_of

_NO_RANGE = 1e-6
"""A channel this much smaller than the largest one carries nothing but rounding."""

_EQUAL = 1e-4
"""Ranges that differ by less are equal: what is left after equalising once is rounding."""


@torch.no_grad()
def equalise_pairs_(network: nn.Module, batches: Iterable[Tensor]) -> int:
    """Gives all channels between two layers of a chain one range, and returns how many pairs changed.

    The range of a channel is its largest absolute value on the images of `batches`; the common one is the
    geometric mean. Channels without a range stay. A chain of three layers has two pairs. What the network,
    which must be in eval mode, computes changes by rounding only.

    Raises:
        DataError: there are no images.
    """
    chains = [module for module in network.modules() if _is_chain(module)]
    seen = _measured(network, chains, batches)
    shared = _shared_weights(network)
    changed = 0
    for chain in chains:
        apart = any(seen.calls[layer] != seen.calls[chain] for layer in chain.children())
        if seen.calls[chain] and not apart and shared.isdisjoint(map(id, chain.parameters())):
            changed += sum(_equalise_(*pair, seen.ranges[pair[0]]) for pair in pairwise(chain.children()))
    return changed


def _is_chain(module: nn.Module) -> bool:
    """Tells whether a module is two or more linear operators with nothing between them."""
    if type(module) is not nn.Sequential or len(module) < 2:
        return False
    try:
        return len({op_of(layer).kind for layer in module}) == 1
    except UnsupportedLayer:
        return False


def _shared_weights(network: nn.Module) -> set[int]:
    owners = Counter(id(p) for module in network.modules() for p in module.parameters(recurse=False))
    return {weight for weight, count in owners.items() if count > 1}


@dataclass
class _Seen:
    """How often modules ran, and the largest absolute value of each output channel of a layer."""

    calls: Counter[nn.Module] = field(default_factory=Counter)
    ranges: dict[nn.Module, Tensor] = field(default_factory=dict)

    def chain(self, chain: nn.Module, inputs: object, output: object) -> None:
        """Notes that a chain has run."""
        self.calls[chain] += 1

    def layer(self, layer: nn.Module, inputs: object, output: Tensor) -> None:
        """Notes that a layer has run."""
        self.calls[layer] += 1
        channels = output.movedim(-1 if isinstance(layer, nn.Linear) else -3, 0)
        largest = channels.flatten(1).abs().amax(dim=1)
        self.ranges[layer] = torch.maximum(self.ranges.get(layer, largest), largest)


def _measured(network: nn.Module, chains: list[nn.Module], batches: Iterable[Tensor]) -> _Seen:
    seen, images = _Seen(), 0
    layers = {layer for chain in chains for layer in chain.children()}  # a layer may be in two chains
    handles = [chain.register_forward_hook(seen.chain) for chain in chains]
    handles += [layer.register_forward_hook(seen.layer) for layer in layers]
    try:
        for batch in batches:
            network(batch)
            images += len(batch)
    finally:
        for handle in handles:
            handle.remove()
    if images == 0:
        raise DataError("equalising low-rank chains: there are no images to measure ranges on; give some")
    return seen


def _equalise_(first: nn.Module, second: nn.Module, ranges: Tensor) -> bool:
    """Rescales the channels between two layers to one range; tells whether that changes them."""
    factors = _factors(ranges.double())
    if (factors - 1).abs().max() < _EQUAL:
        return False
    for parameter in first.parameters():
        rows = factors.reshape(-1, *[1] * (parameter.ndim - 1))
        parameter.copy_(parameter.double() * rows)
    weight, groups = second.get_parameter("weight"), op_of(second).groups
    # input channels of a grouped layer are counted anew in every group of outputs
    columns = factors.reshape(groups, 1, -1).expand(-1, weight.shape[0] // groups, -1).flatten(0, 1)
    weight.copy_(weight.double() / columns.reshape(columns.shape + (1,) * (weight.ndim - 2)))
    return True


def _factors(ranges: Tensor) -> Tensor:
    """Returns what to multiply each channel by."""
    usable = ranges.isfinite() & (ranges > _NO_RANGE * ranges.nan_to_num(posinf=0).max())
    common = ranges[usable].log().mean().exp()
    return torch.where(usable, common / ranges, 1.0)
