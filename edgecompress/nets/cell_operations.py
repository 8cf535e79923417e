"""The operations on the edges of searched cells. All keep the number of channels; stride 2 halves the map.

Activations come first and batch norms last, so that nodes add up normalised maps. In a search batch norms
have no scale: it could take the place of the scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.genotype import NONE, SKIP


class Nothing(nn.Module):
    """The edge that is not there."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Returns zeros in the shape another operation would return."""
        return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])


class EverySecond(nn.Module):
    """Picks every second pixel of both directions."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns a map of half the size, rounded up."""
        return x[:, :, ::2, ::2]


class HalvingSkip(nn.Module):
    """A skip connection to a map of half the size: two 1x1 convolutions, each on other pixels."""

    def __init__(self, inputs: int, outputs: int, *, affine: bool) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs - outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False) if outputs > 1 else None
        self.norm = nn.BatchNorm2d(outputs, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a map of half the size, rounded up."""
        x = F.relu(x)
        parts = [self.even(x)]
        if self.odd is not None:
            height, width = x.shape[-2:]
            # maps of odd size have one pixel less to the right of every second one
            shifted = F.pad(x[:, :, 1:, 1:], (0, width % 2, 0, height % 2))
            parts.append(self.odd(shifted))
        out: Tensor = self.norm(torch.cat(parts, dim=1))
        return out


def make_operation(name: str, channels: int, *, stride: int, affine: bool) -> nn.Module:
    """Returns an operation of `OPERATIONS`, with random weights; `affine` is about its batch norms."""
    if name == NONE:
        return Nothing(stride)
    if name == SKIP:
        return nn.Identity() if stride == 1 else HalvingSkip(channels, channels, affine=affine)
    kind, size = name[:-1], int(name[-1])
    if kind in ("max", "avg"):
        return _pool(kind, size, channels, stride)
    if kind == "conv":
        return relu_conv(channels, channels, size, stride=stride, affine=affine)
    if kind == "dil":
        return nn.Sequential(*_separable(channels, size, stride=stride, dilation=2, affine=affine))
    assert kind == "sep", f"no operation {name}"
    first = _separable(channels, size, stride=stride, dilation=1, affine=affine)
    return nn.Sequential(*first, *_separable(channels, size, stride=1, dilation=1, affine=affine))


def relu_conv(inputs: int, outputs: int, size: int, *, stride: int = 1, affine: bool) -> nn.Sequential:
    """Returns activation, convolution and batch norm."""
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(outputs, affine=affine))


def _pool(kind: str, size: int, channels: int, stride: int) -> nn.Module:
    pool: nn.Module = nn.MaxPool2d(size, stride, padding=size // 2)
    if kind == "avg":
        pool = nn.AvgPool2d(size, stride, padding=size // 2, count_include_pad=False)
    return nn.Sequential(pool, nn.BatchNorm2d(channels, affine=False))


def _separable(channels: int, size: int, *, stride: int, dilation: int, affine: bool) -> list[nn.Module]:
    if stride == dilation > 1:
        # it reads every second pixel only; TFLite has no convolution with both a stride and a dilation
        rest = _separable(channels, size, stride=1, dilation=1, affine=affine)
        return [EverySecond(), *rest]
    padding = dilation * (size // 2)
    depthwise = nn.Conv2d(
        channels, channels, size, stride, padding, dilation=dilation, groups=channels, bias=False
    )
    pointwise = nn.Conv2d(channels, channels, 1, bias=False)
    return [nn.ReLU(), depthwise, pointwise, nn.BatchNorm2d(channels, affine=affine)]
