"""Rounding to 8 bits: on the grid, the grid stays, and outputs are nearer than with the nearest values."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from edgecompress.factors.rounding import STEPS, round_weights_


def steps(weight: torch.Tensor) -> torch.Tensor:
    return weight.flatten(1).abs().amax(1) / STEPS


def nearest(layer: nn.Module) -> nn.Module:
    other = copy.deepcopy(layer)
    with torch.no_grad():
        each = steps(layer.weight).view(-1, *[1] * (layer.weight.ndim - 1))
        other.weight.copy_((layer.weight / each).round() * each)
    return other


LAYERS = {
    "conv": nn.Conv2d(6, 8, 3, padding=1),
    "strided": nn.Conv2d(6, 8, (3, 1), stride=2, padding=(1, 0)),
    "grouped": nn.Conv2d(6, 12, 3, groups=3),
    "depthwise": nn.Conv2d(6, 6, 3, padding=1, groups=6),
}


def images(count: int, seed: int) -> torch.Tensor:
    """Neighbouring pixels and channels are alike, as in real images and maps."""
    noise = torch.randn(count, 6, 16, 16, generator=torch.Generator().manual_seed(seed))
    smooth = nn.functional.avg_pool2d(noise, 5, 1, 2)
    return torch.relu(smooth.cumsum(1) + 0.1)


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_are_nearer_than_with_the_nearest_weights(name):
    torch.manual_seed(0)
    layer = copy.deepcopy(LAYERS[name]).eval()
    nn.init.normal_(layer.weight)
    rounded = nn.Sequential(copy.deepcopy(layer))
    assert round_weights_(rounded, images(32, 1).split(8)) == 1
    unseen = images(16, 2)
    expected = layer(unseen)
    error = (rounded(unseen) - expected).square().mean()
    assert error < 0.8 * (nearest(layer)(unseen) - expected).square().mean()


@pytest.mark.parametrize("name", LAYERS)
def test_weights_lie_on_the_grid_of_the_original_largest_weight(name):
    torch.manual_seed(0)
    network = nn.Sequential(copy.deepcopy(LAYERS[name])).eval()
    before = steps(network[0].weight)
    round_weights_(network, [images(16, 1)])
    torch.testing.assert_close(steps(network[0].weight), before, rtol=1e-6, atol=0)
    levels = network[0].weight.flatten(1) / before[:, None]
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-3)


def test_a_layer_that_saw_too_little_and_a_channel_of_zeros_stay():
    layer = nn.Linear(40, 3)
    before = layer.weight.detach().clone()
    assert round_weights_(nn.Sequential(layer), [torch.randn(10, 40)]) == 0
    assert torch.equal(layer.weight, before)
    with torch.no_grad():
        layer.weight[1] = 0
    assert round_weights_(nn.Sequential(layer), [torch.randn(100, 40)]) == 1
    assert not layer.weight[1].any() and layer.weight.isfinite().all()


def test_inputs_that_are_always_zero_do_no_harm():
    layer = nn.Linear(8, 3)
    inputs = torch.randn(100, 8)
    inputs[:, :4] = 0
    assert round_weights_(nn.Sequential(layer), [inputs]) == 1
    assert layer.weight.isfinite().all()
