"""Channels between the layers of a chain get one range, and the network computes what it did."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_nets import INPUT_SHAPE, hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.core.types import Block
from edgecompress.errors import DataError
from edgecompress.methods import tucker2
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.equalise import equalise_pairs_
from edgecompress.nets.families import Family
from edgecompress.nets.modules import block_module, find_layers, replace_


def compressed():
    """Returns the small network with a grouped pair, a chain of three, two branches and a linear pair."""
    net = small_net()
    narrow, wide, biased, hidden = find_layers(net, ["narrow", "wide", "biased", "hidden"], INPUT_SHAPE)[0]
    branches = [pair_candidate(biased, Family(f), 2).blocks[0].branches[0] for f in ("S2", "S5")]
    blocks = {
        "narrow": pair_candidate(narrow, Family("S5", 2), 6).blocks[0],
        "wide": next(iter(tucker2.METHOD.candidates(wide))).blocks[0],
        "biased": Block(branches=tuple(branches)),
        "hidden": pair_candidate(hidden, Family("S4"), 4).blocks[0],
    }
    torch.manual_seed(1)
    for name, block in blocks.items():
        replace_(net, name, block_module(block))
    return net.double().eval()


PAIRS = 6  # one, two, two times one, one


def batches():
    return images(12, dtype=torch.float64).split(5)


@torch.no_grad()
def ranges_of(network, layer, channel_axis):
    """Returns the largest absolute value of each channel that a layer puts out."""
    seen = []
    handle = layer.register_forward_hook(lambda _, __, y: seen.append(y.movedim(channel_axis, 0).flatten(1)))
    for batch in batches():
        network(batch)
    handle.remove()
    return torch.cat(seen, dim=1).abs().amax(dim=1)


@torch.no_grad()
def test_the_network_computes_what_it_did():
    net, x = compressed(), images(3, seed=4, dtype=torch.float64)
    before, state = net(x), state_of(net)
    assert equalise_pairs_(net, batches()) == PAIRS
    torch.testing.assert_close(net(x), before)
    assert not same_state(net, state)
    assert hooks_of(net) == 0


def test_the_inner_channels_of_every_chain_have_one_range_afterwards():
    net = compressed()
    inner = [net.narrow[0], net.wide[0], net.wide[1], *(branch[0] for branch in net.biased.branches)]
    before = [ranges_of(net, layer, 1) for layer in inner] + [ranges_of(net, net.hidden[0], -1)]
    equalise_pairs_(net, batches())
    after = [ranges_of(net, layer, 1) for layer in inner] + [ranges_of(net, net.hidden[0], -1)]
    assert all((a.max() - a.min()) / a.max() > 0.01 for a in before)
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old.log().mean().exp().expand_as(new))


def test_equal_ranges_are_left_alone():
    net = compressed()
    equalise_pairs_(net, batches())
    state = state_of(net)
    assert equalise_pairs_(net, batches()) == 0
    assert same_state(net, state)


@given(
    groups=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    bias=st.booleans(),
    spread=st.floats(0.5, 4.0),
)
def test_grouped_chains_compute_what_they_did(groups, bias, spread):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(6, 6, 3, padding=1, groups=groups[0], bias=bias),
        nn.Conv2d(6, 6, 3, padding=1, stride=2, groups=groups[1]),
    ).double()
    x = images(4, shape=(6, 5, 5), dtype=torch.float64)
    with torch.no_grad():
        network[0].weight *= torch.logspace(0, spread, 6)[:, None, None, None]
        before = network(x)
        assert equalise_pairs_(network, [x]) == 1
        torch.testing.assert_close(network(x), before)
        inner = network[0](x).movedim(1, 0).flatten(1).abs().amax(dim=1)
    torch.testing.assert_close(inner, inner.mean().expand_as(inner))


@pytest.mark.parametrize("weight", [0.0, 1e-12, float("inf")])
def test_a_channel_without_a_range_stays(weight):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2)).double()
    with torch.no_grad():
        network[0].weight[1] = weight
    row, column = network[0].weight[1].clone(), network[1].weight[:, 1].clone()
    assert equalise_pairs_(network, [torch.rand(5, 4, dtype=torch.float64)]) == 1
    assert torch.equal(network[0].weight[1], row) and torch.equal(network[1].weight[:, 1], column)
    assert torch.isfinite(network[1].weight).all()


def test_a_chain_of_zeros_stays():
    network = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2))
    nn.init.zeros_(network[0].weight)
    assert equalise_pairs_(network, [torch.rand(5, 4)]) == 0


def rounded(x):
    """Rounds to the 255 steps of a symmetric int8 tensor."""
    step = x.abs().max() / 127
    return (x / step).round() * step


@torch.no_grad()
def test_rounding_between_the_layers_to_int8_hurts_less():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16)).double()
    x = torch.randn(200, 16, dtype=torch.float64)
    ratio = torch.logspace(0, 3, 16, dtype=torch.float64)
    network[0].weight.mul_(ratio[:, None])
    network[1].weight.div_(ratio)
    exact, before = network(x), network[1](rounded(network[0](x)))
    equalise_pairs_(network, [x])
    after = network[1](rounded(network[0](x)))
    assert torch.dist(after, exact) < 0.1 * torch.dist(before, exact)


class Odd(nn.Module):
    """Holds chains whose inner channels must not be rescaled."""

    def __init__(self):
        super().__init__()
        self.opened, self.tied, self.tie, self.unused = (self._chain() for _ in range(4))
        self.tied[1].weight = self.tie[1].weight
        self.active = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1))
        self.sole = nn.Sequential(nn.Conv2d(3, 3, 1))

    @staticmethod
    def _chain():
        return nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

    def forward(self, x):
        inside = self.opened[0](x)
        x = self.opened(x) + inside.relu()
        return self.sole(self.active(self.tie(self.tied(x))))


def test_layers_that_are_no_chain_of_their_own_stay():
    torch.manual_seed(0)
    network = Odd().double()
    state = state_of(network)
    assert equalise_pairs_(network, batches()) == 0
    assert same_state(network, state)


def test_images_are_needed():
    with pytest.raises(DataError, match="no images"):
        equalise_pairs_(compressed(), [])
