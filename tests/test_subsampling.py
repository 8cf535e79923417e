"""Shortcuts that pick pixels become convolutions, and nothing else does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgecompress.nets.export_ready import export_ready
from edgecompress.nets.sources import load_model
from edgecompress.nets.subsampling import rewrite_subsampling_


class Calling(nn.Module):
    """A module around any function, as many CIFAR ResNets write their shortcut."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def around(function) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Calling(function), nn.Flatten()).eval()


def option_a(x, stride=2, before=2, after=3):
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, before, after))


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize(("stride", "before", "after"), [(2, 2, 3), (2, 0, 4), (2, 0, 0), (3, 1, 1)])
def test_a_shortcut_that_picks_pixels_becomes_a_convolution(side, stride, before, after):
    network = around(lambda x: option_a(x, stride, before, after))
    image = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    expected = network(image)
    assert rewrite_subsampling_(network, (3, side, side)) == 1
    assert isinstance(network[1], nn.Conv2d)
    torch.testing.assert_close(network(image), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 1, 2) + 1,
        lambda x: x[:, :, 1::2, 1::2],
        lambda x: -x[:, :, ::2, ::2],
        lambda x: x[:, :2, ::2, ::2],
        lambda x: x[:, :, ::2],
        lambda x: x.flip(1)[:, :, ::2, ::2],
        lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1), value=1.0),
    ],
)
def test_what_does_anything_else_stays(function):
    network = around(function)
    before = network[1]
    assert rewrite_subsampling_(network, (3, 8, 8)) == 0
    assert network[1] is before


def test_both_shortcuts_of_a_cifar_resnet_are_rewritten_for_export():
    loaded = load_model("zoo:resnet20")
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    ready = export_ready(loaded.module, (3, 32, 32))
    found = [name for name, one in ready.named_modules() if "shortcut" in name and isinstance(one, nn.Conv2d)]
    assert len(found) == 2
    torch.testing.assert_close(ready(image), loaded.module(image), rtol=1e-4, atol=1e-5)
