"""Depthwise convolutions with kernels XNNPACK has no kernel for, as sums of smaller ones.

It has some for up to 25 taps. A depthwise 7x7 convolution falls back to one ordinary convolution per channel:
18 times the ARM instructions of a 5x5 one. Every third row of its kernel is a dilated convolution of at most
21 taps; three of these and two sums take 6 times fewer.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from edgecompress.nets.folding import exchange_

MOST_TAPS = 25


class SumOfRows(nn.Module):
    """A depthwise convolution as the sum of those with every n-th row of its kernel."""

    def __init__(self, conv: nn.Conv2d, count: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_part(conv, first, count) for first in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """Returns what the convolution returns."""
        total: Tensor = self.parts[0](x)
        for part in self.parts[1:]:
            total = total + part(x)
        return total


def split_large_depthwise_(network: nn.Module) -> int:
    """Replaces depthwise convolutions of more than 25 taps, and returns how many; little-padded ones stay."""
    replaced: dict[nn.Module, nn.Module] = {}
    for module in network.modules():
        count = _parts_needed(module) if type(module) is nn.Conv2d else 0
        if count:
            replaced[module] = SumOfRows(cast(nn.Conv2d, module), count).train(module.training)
    exchange_(network, replaced)
    return len(replaced)


def _parts_needed(conv: nn.Module) -> int:
    """Returns into how many parts a convolution is to be split; 0: it stays."""
    assert isinstance(conv, nn.Conv2d)
    height, width = conv.kernel_size
    depthwise = conv.groups == conv.in_channels == conv.out_channels > 1
    plain = conv.padding_mode == "zeros" and conv.dilation == (1, 1) and not isinstance(conv.padding, str)
    if not depthwise or not plain or height * width <= MOST_TAPS or width > MOST_TAPS:
        return 0
    count = -(-height // (MOST_TAPS // width))
    return (
        count if count - 1 <= cast(tuple[int, int], conv.padding)[0] else 0
    )  # rows above may not be cut off


@torch.no_grad()
def _part(conv: nn.Conv2d, first: int, count: int) -> nn.Module:
    """Returns the convolution with the rows first, first + count, ... of the kernel."""
    weight = conv.weight[:, :, first::count]
    rows, (above, beside) = weight.shape[2], cast(tuple[int, int], conv.padding)
    below = conv.kernel_size[0] - 1 - (first + count * (rows - 1))
    part = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        (rows, conv.kernel_size[1]),
        cast(tuple[int, int], conv.stride),
        dilation=(count, 1),
        groups=conv.groups,
        bias=first == 0 and conv.bias is not None,
    )
    part.weight.copy_(weight)
    if part.bias is not None and conv.bias is not None:
        part.bias.copy_(conv.bias)
    return nn.Sequential(nn.ZeroPad2d((beside, beside, above - first, above - below)), part)
