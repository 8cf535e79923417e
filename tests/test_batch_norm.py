"""Only what compression changed is corrected, first layer to last."""

import copy

import pytest
import torch
from small_nets import hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.factors.batch_norm import MAX_VARIANCE_RATIO, correct_statistics_

BATCHES = [images(8, seed=0), images(4, seed=1)]
NORMS = ("stem.1", "norm1", "norm2")


def matched_net():
    """Returns a network whose stored statistics are those of the images."""
    net = small_net().double()
    torch.set_grad_enabled(False)
    net.train()
    net(torch.cat(BATCHES).double())
    for name in NORMS:
        norm = net.get_submodule(name)
        norm.running_var.mul_(1 - 1 / (12 * norm_positions(name)))  # torch stores the unbiased variance
    torch.set_grad_enabled(True)
    return net.eval()


def norm_positions(name):
    return {"stem.1": 144, "norm1": 144, "norm2": 36}[name]


def batches64():
    return [batch.double() for batch in BATCHES]


@torch.no_grad()
def outputs(net):
    return net(torch.cat(BATCHES).to(net.head.weight))


def test_identical_networks_are_not_changed():
    dense, same = small_net(), small_net()
    state = state_of(same)
    assert correct_statistics_(same, dense, BATCHES) == 3
    assert same_state(same, state)
    assert hooks_of(same) == hooks_of(dense) == 0


def test_channels_that_are_constant_in_both_networks_are_not_changed():
    dense = small_net()
    with torch.no_grad():
        dense.narrow.weight[:3] = 0
    same = copy.deepcopy(dense)
    state = state_of(same)
    correct_statistics_(same, dense, BATCHES)
    assert same_state(same, state)


@pytest.mark.parametrize("factor", [0.6, 1.5, 1.9])
def test_a_scaled_convolution_is_undone(factor):
    dense = matched_net()
    scaled = copy.deepcopy(dense)
    with torch.no_grad():
        scaled.narrow.weight.mul_(factor)
    before = (outputs(scaled) - outputs(dense)).abs().max()
    correct_statistics_(scaled, dense, batches64())
    after = (outputs(scaled) - outputs(dense)).abs().max()
    assert float(after) < 1e-3 * float(before)
    for name in ("stem.1", "norm2"):
        ours, theirs = scaled.get_submodule(name), dense.get_submodule(name)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-3, atol=1e-4)


def test_a_shift_is_undone_whatever_statistics_are_stored():
    dense = small_net()
    dense.narrow = nn.Conv2d(8, 12, 3, padding=1)
    shifted = copy.deepcopy(dense)
    with torch.no_grad():
        shifted.narrow.bias.add_(torch.linspace(-2, 2, 12))
    correct_statistics_(shifted, dense, BATCHES)
    torch.testing.assert_close(outputs(shifted), outputs(dense), rtol=1e-4, atol=1e-4)


def test_later_layers_are_measured_after_earlier_ones_are_corrected():
    dense = matched_net()
    both = copy.deepcopy(dense)
    with torch.no_grad():
        both.narrow.weight.mul_(1.5)
        both.wide.weight.mul_(0.7)
    correct_statistics_(both, dense, batches64())
    torch.testing.assert_close(outputs(both), outputs(dense), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("factor", [100.0, 0.001])
def test_a_variance_is_never_scaled_out_of_all_proportion(factor):
    dense = small_net()
    scaled = copy.deepcopy(dense)
    with torch.no_grad():
        scaled.narrow.weight.mul_(factor)
    correct_statistics_(scaled, dense, BATCHES)
    ratio = scaled.norm1.running_var / dense.norm1.running_var
    expected = MAX_VARIANCE_RATIO if factor > 1 else 1 / MAX_VARIANCE_RATIO
    torch.testing.assert_close(ratio, torch.full_like(ratio, expected))


def test_only_statistics_of_the_compressed_network_change():
    dense, other = small_net(seed=0), small_net(seed=1)
    dense_state, other_state = state_of(dense), state_of(other)
    correct_statistics_(other, dense, BATCHES)
    assert same_state(dense, dense_state)
    changed = {
        name for name, value in other.state_dict().items() if not torch.equal(value, other_state[name])
    }
    assert changed == {f"{norm}.{what}" for norm in NORMS for what in ("running_mean", "running_var")}


def test_networks_without_batch_norm_have_nothing_to_correct():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 2))
    assert correct_statistics_(net, copy.deepcopy(net), BATCHES) == 0


def test_batch_norms_without_statistics_are_left_alone():
    dense = small_net()
    dense.norm1 = nn.BatchNorm2d(12, track_running_stats=False)
    other = copy.deepcopy(dense)
    assert correct_statistics_(other, dense, BATCHES) == 2
    assert other.norm1.running_mean is None
