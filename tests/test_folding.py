"""Batch norms are folded exactly where one layer's output goes only there, and stay everywhere else."""

import copy
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_nets import INPUT_SHAPE, hooks_of, images, small_net
from torch import nn

from edgecompress.core.types import Block, Op
from edgecompress.methods import tucker2
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.families import Family
from edgecompress.nets.folding import exchange_, fold_batch_norms_
from edgecompress.nets.modules import Sum, block_module, find_layers, replace_
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable

ensure_torchvision_importable()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from timm.layers.norm_act import BatchNormAct2d

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def lively(network):
    """Returns a network in float64 and eval mode whose batch norms are unlike the identity."""
    generator = torch.Generator().manual_seed(0)
    for norm in norms_of(network):
        for tensor in (norm.running_mean, norm.weight, norm.bias):
            if tensor is not None:
                nn.init.normal_(tensor, generator=generator)
        if norm.running_var is not None:
            nn.init.uniform_(norm.running_var, 0.3, 3.0, generator=generator)
    return network.double().eval()


def norms_of(network):
    return [module for module in network.modules() if isinstance(module, NORMS)]


@torch.no_grad()
def check_folds(network, count, *, shape=INPUT_SHAPE):
    """Checks that so many batch norms are folded and that the network computes what it did."""
    x = images(3, shape=shape, dtype=torch.float64)
    before, had = network(x), len(norms_of(network))
    assert fold_batch_norms_(network, shape) == count
    torch.testing.assert_close(network(x), before)
    assert len(norms_of(network)) == had - count
    assert hooks_of(network) == 0


@given(
    groups=st.integers(1, 3),
    inputs=st.integers(1, 2),
    outputs=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    bias=st.booleans(),
    affine=st.booleans(),
)
def test_every_convolution_takes_its_batch_norm(groups, inputs, outputs, kernel, stride, bias, affine):
    conv = nn.Conv2d(
        groups * inputs, groups * outputs, kernel, stride=stride, padding=1, groups=groups, bias=bias
    )
    network = lively(nn.Sequential(conv, nn.BatchNorm2d(groups * outputs, affine=affine)))
    check_folds(network, 1, shape=(groups * inputs, 5, 4))
    assert isinstance(network[1], nn.Identity)


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_takes_its_batch_norm(bias):
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 5, bias=bias), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)
    )
    check_folds(lively(network), 1, shape=(3, 2, 2))


class Tokens(nn.Module):
    """Its batch norm counts tokens as channels, not the outputs of the linear layer."""

    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.mix(x.flatten(2)))


def test_a_batch_norm_over_another_axis_stays():
    check_folds(lively(Tokens()), 0, shape=(3, 2, 2))


def compressed(kind):
    """Returns the small network with one of its layers before a batch norm replaced."""
    net = small_net()
    (wide,), _ = find_layers(net, ["wide"], INPUT_SHAPE)
    pairs = {f: pair_candidate(wide, Family(f), 3).blocks[0] for f in ("S2", "S5")}
    blocks = {
        "pair": pairs["S2"],
        "grouped pair": pair_candidate(wide, Family("S4", 2), 4).blocks[0],
        "chain of three": next(iter(tucker2.METHOD.candidates(wide))).blocks[0],
        "two branches": Block(branches=(*pairs["S2"].branches, *pairs["S5"].branches)),
    }
    replace_(net, "wide", block_module(blocks[kind]))
    return lively(net)


@pytest.mark.parametrize("kind", ["pair", "grouped pair", "chain of three", "two branches"])
def test_the_last_operator_of_a_low_rank_block_takes_the_batch_norm(kind):
    net = compressed(kind)
    chains = net.wide.branches if kind == "two branches" else [net.wide]
    first = [copy.deepcopy(layer.state_dict()) for chain in chains for layer in chain[:-1]]
    check_folds(net, 3)
    after = [layer.state_dict() for chain in chains for layer in chain[:-1]]
    assert all(torch.equal(a["weight"], b["weight"]) for a, b in zip(first, after, strict=True))
    assert [chain[-1].bias is not None for chain in chains] == [True, False][: len(chains)]


def test_biases_of_both_branches_are_scaled():
    ops = [Op(kind="conv2d", inputs=3, outputs=4, bias=True)] * 2
    network = nn.Sequential(block_module(Block(branches=((ops[0],), (ops[1],)))), nn.BatchNorm2d(4))
    assert isinstance(network[0], Sum)
    check_folds(lively(network), 1)


def test_batch_norms_before_their_convolution_stay():
    network = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.BatchNorm2d(4))
    check_folds(lively(network), 0)


class Odd(nn.Module):
    """Uses the output of its convolution in a way that keeps the batch norm from being folded."""

    def __init__(self, use):
        super().__init__()
        self.conv, self.norm, self.other = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.tied = nn.Conv2d(3, 3, 1)
        self.tied.weight = self.conv.weight
        self.own, self.free = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)
        self.use = use

    def forward(self, x):
        return self.use(self, x)


def read_twice(net, x):
    y = net.own(x)
    return net.norm(y) + y


def normed_twice(net, x):
    y = net.own(x)
    return net.norm(y) + net.other(y)


def changed_in_place(net, x):
    return net.norm(net.own(x).relu_())


def seen_through_a_view(net, x):
    y = net.own(x)
    return net.norm(y) + y.flatten(2).amax()


def handed_out(net, x):
    y = net.own(x)
    return net.norm(y), y


USES = {
    "read twice": read_twice,
    "normed twice": normed_twice,
    "changed in place": changed_in_place,
    "seen through a view": seen_through_a_view,
    "handed out": handed_out,
    "layer that runs twice": lambda net, x: net.norm(net.own(net.own(x))),
    "norm that runs twice": lambda net, x: net.norm(net.own(net.norm(net.conv(x)))),
    "tied weights": lambda net, x: net.norm(net.conv(x)) + net.tied(x),
    "no statistics": lambda net, x: net.free(net.own(x)),
    "keyword": lambda net, x: net.norm(input=net.own(x)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_batch_norm_stays_when_folding_it_would_change_something_else(use):
    torch.manual_seed(0)
    check_folds(lively(Odd(use)), 0)


class Padding(nn.Conv2d):
    def forward(self, x):
        padded = nn.functional.pad(x, (0, 1, 0, 1))
        return nn.functional.conv2d(padded, self.weight, self.bias, self.stride)


class Standardising(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight / weight.std((1, 2, 3), keepdim=True), self.bias)


class Rectifying(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).relu()


class WithoutBias(nn.Conv2d):
    def forward(self, x):
        return nn.functional.conv2d(x, self.weight)


@pytest.mark.parametrize(
    ("kind", "count"), [(Padding, 1), (Standardising, 0), (Rectifying, 0), (WithoutBias, 0)]
)
def test_a_convolution_with_a_forward_of_its_own_is_tried_first(kind, count):
    torch.manual_seed(0)
    check_folds(lively(nn.Sequential(kind(3, 4, 2, bias=False), nn.BatchNorm2d(4))), count)


def test_a_layer_whose_weight_is_computed_keeps_its_batch_norm():
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 1))
    check_folds(lively(nn.Sequential(conv, nn.BatchNorm2d(4))), 0)


class Doubling(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_batch_norm_with_a_forward_of_its_own_stays():
    check_folds(lively(nn.Sequential(nn.Conv2d(3, 4, 1), Doubling(4))), 0)


def test_the_activation_inside_a_batch_norm_of_timm_stays():
    network = lively(nn.Sequential(nn.Conv2d(3, 4, 1), BatchNormAct2d(4)))
    check_folds(network, 1)
    assert any(isinstance(module, nn.ReLU) for module in network.modules())


class Hidden(nn.Module):
    """Reaches its batch norm by a list that nothing can be exchanged in, and by two names."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.alias, self.list = self.norm, [self.norm]

    def forward(self, x):
        return self.list[0](self.conv(x))


def test_a_batch_norm_reached_by_other_names_is_not_applied_twice():
    network = lively(Hidden())
    check_folds(network, 1)
    assert isinstance(network.norm, nn.Identity) and network.alias is network.norm


def test_batch_norms_that_share_weights_are_folded_one_by_one():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    network[3].weight, network[3].bias = network[1].weight, network[1].weight
    check_folds(lively(network), 2)


def test_a_network_in_training_mode_is_folded_with_its_running_statistics():
    network = compressed("pair")
    x = images(3, dtype=torch.float64)
    expected = network(x)
    network.train()
    assert fold_batch_norms_(network, INPUT_SHAPE) == 3
    assert not any(module.training for module in network.modules())
    torch.testing.assert_close(network(x), expected)


def test_modules_are_exchanged_under_every_name():
    network = Hidden()
    exchange_(network, {network.norm: nn.Identity()})
    assert isinstance(network.norm, nn.Identity) and network.alias is network.norm
