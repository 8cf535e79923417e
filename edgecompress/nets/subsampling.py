"""Writes shortcuts that pick every second pixel as convolutions, which edge runtimes run among the others.

The parameter-free shortcut of CIFAR ResNets ("option A") takes every second pixel and fills new channels with
zeros. As a strided slice and a pad it leaves TFLite's accelerated kernels and cuts the network in pieces; as
a 1 x 1 convolution with the same stride, whose weights are 0 and 1, it stays among them. Both are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgecompress.nets.folding import exchange_
from edgecompress.nets.modules import zero_image

_TRIALS = 2


def rewrite_subsampling_(network: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """Replaces modules without weights that only pick pixels and pad channels; returns how many.

    They are known by what they do to random maps, so a lambda in a module is found as well.
    """
    seen = _maps(network, input_shape)
    replaced: dict[nn.Module, nn.Module] = {}
    for module, shapes in seen.items():
        conv = _as_conv(module, *next(iter(shapes))) if len(shapes) == 1 else None
        if conv is not None:
            replaced[module] = conv.to(zero_image(network, input_shape).dtype).eval()
    exchange_(network, replaced)
    return len(replaced)


Shapes = tuple[torch.Size, torch.Size]


@torch.no_grad()
def _maps(network: nn.Module, input_shape: tuple[int, int, int]) -> dict[nn.Module, set[Shapes]]:
    """Returns the shapes of input and output of weightless leaf modules that make maps smaller."""
    seen: dict[nn.Module, set[Shapes]] = {}

    def note(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            seen.setdefault(module, set()).add((inputs[0].shape, output.shape))

    leaves = [one for one in network.modules() if not any(one.children()) and not one.state_dict()]
    handles = [leaf.register_forward_hook(note) for leaf in leaves]
    try:
        network(zero_image(network, input_shape))
    finally:
        for handle in handles:
            handle.remove()
    return seen


@torch.no_grad()
def _as_conv(module: nn.Module, taken: torch.Size, given: torch.Size) -> nn.Conv2d | None:
    if len(taken) != 4 or len(given) != 4 or given[1] < taken[1]:
        return None
    stride = -(-taken[2] // given[2])
    smaller = (-(-taken[2] // stride), -(-taken[3] // stride))
    if stride < 2 or given[2:] != smaller:
        return None
    before = _zeros_before(module, taken, given, stride)
    if before is None:
        return None
    conv = nn.Conv2d(taken[1], given[1], 1, stride=stride, bias=False)
    conv.weight.zero_()
    for channel in range(taken[1]):
        conv.weight[before + channel, channel] = 1.0
    return conv


def _zeros_before(module: nn.Module, taken: torch.Size, given: torch.Size, stride: int) -> int | None:
    """Returns how many new channels stand before the old ones; None where it does something else."""
    found = set()
    for seed in range(_TRIALS):
        x = torch.randn(taken, generator=torch.Generator().manual_seed(seed))
        y, picked = module(x), x[:, :, ::stride, ::stride]
        places = [
            place
            for place in range(given[1] - taken[1] + 1)
            if torch.equal(y[:, place : place + taken[1]], picked)
            and not y[:, :place].any()
            and not y[:, place + taken[1] :].any()
        ]
        found.add(places[0] if places else None)
    return found.pop() if len(found) == 1 else None
