"""Layers are found, described and replaced; those that cannot be are named with the reason."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_nets import INPUT_SHAPE, TARGETS, SmallNet, hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.core.types import Block, Op
from edgecompress.errors import ModelError, UnsupportedLayer
from edgecompress.nets.modules import (
    Sum,
    block_layers,
    block_module,
    find_batch_norms,
    find_layers,
    layer_named,
    module_of,
    op_of,
    replace_,
    weight_of,
)

sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    groups=st.integers(1, 3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    kernel=sizes,
    stride=sizes,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=sizes,
    bias=st.booleans(),
)
def test_a_built_convolution_has_the_description_it_was_built_from(groups, inputs, outputs, **rest):
    op = Op(kind="conv2d", inputs=groups * inputs, outputs=groups * outputs, groups=groups, **rest)
    assert op_of(module_of(op)) == op


@pytest.mark.parametrize("bias", [False, True])
def test_a_built_linear_layer_has_the_description_it_was_built_from(bias):
    op = Op(kind="linear", inputs=3, outputs=5, bias=bias)
    assert op_of(module_of(op)) == op


class OwnForward(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).relu()


class OwnProduct(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


class OwnLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def patched():
    layer = nn.Conv2d(4, 4, 1)
    layer.forward = lambda x: x
    return layer


class JustANewName(nn.Conv2d):
    pass


UNSUPPORTED = {
    "transposed": (nn.ConvTranspose2d(4, 4, 3, padding=1), "ConvTranspose2d is neither Conv2d nor Linear"),
    "one-dimensional": (nn.Conv1d(4, 4, 1), "neither"),
    "norm": (nn.BatchNorm2d(4), "neither"),
    "reflecting": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "pads with 'reflect'"),
    "same": (nn.Conv2d(4, 4, 3, padding="same"), "padding='same'"),
    "own forward": (OwnForward(4, 4, 1), "OwnForward is a Conv2d with a forward of its own"),
    "own product": (OwnProduct(4, 4, 1), "OwnProduct is a Conv2d with a forward of its own"),
    "own linear": (OwnLinear(4, 4), "OwnLinear is a Linear with a forward of its own"),
    "patched": (patched(), "forward of its own"),
}


@pytest.mark.parametrize(("layer", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_a_layer_that_no_operator_describes_is_refused_with_the_reason(layer, reason):
    with pytest.raises(UnsupportedLayer, match=reason):
        op_of(layer)


def test_a_subclass_that_changes_nothing_is_a_convolution():
    assert op_of(JustANewName(4, 6, 1)).outputs == 6


def test_branches_see_the_same_input_and_are_added():
    ops = (Op(kind="conv2d", inputs=2, outputs=4), Op(kind="conv2d", inputs=4, outputs=3))
    other = (Op(kind="conv2d", inputs=2, outputs=3, kernel=(3, 3), padding=(1, 1), bias=True),)
    module = block_module(Block(branches=(ops, other)))
    x = torch.randn(2, 2, 5, 5)
    layers = block_layers(module)
    assert [[op_of(layer) for layer in chain] for chain in layers] == [list(ops), list(other)]
    torch.testing.assert_close(module(x), layers[0][1](layers[0][0](x)) + layers[1][0](x))
    assert isinstance(module, Sum)


def test_a_block_of_one_branch_is_a_plain_chain():
    op = Op(kind="linear", inputs=2, outputs=3)
    module = block_module(Block(branches=((op,),)))
    assert type(module) is nn.Sequential
    assert block_layers(module) == [list(module)]


def test_layers_are_replaced_by_name_wherever_they_are():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 2))
    new = nn.Linear(2, 3)
    replace_(net, "0.0", new)
    assert layer_named(net, "0.0") is net[0][0] is new
    assert [type(m) for m in net[0]] == [nn.Linear, nn.ReLU]


@pytest.mark.parametrize("name", ["nowhere", "stem.7", "hidden.weight", "hidden.deep"])
def test_an_unknown_name_lists_known_ones_and_replaces_nothing(name):
    net = small_net()
    with pytest.raises(ModelError, match=r"has none of that name; it has stem\.0, narrow"):
        replace_(net, name, nn.Identity())
    assert not any(isinstance(module, nn.Identity) for module in net.modules())


def test_weights_are_seen_as_kernels():
    assert weight_of(nn.Linear(3, 5)).shape == (5, 3, 1, 1)
    assert weight_of(nn.Conv2d(4, 6, 3, groups=2)).shape == (6, 2, 3, 3)
    assert not weight_of(nn.Linear(3, 5)).requires_grad


def test_layers_come_in_forward_order_with_the_size_of_their_input():
    layers, skipped = find_layers(small_net(), reversed(TARGETS), INPUT_SHAPE)
    assert [layer.name for layer in layers] == list(TARGETS)
    assert [layer.in_size for layer in layers] == [(12, 12), (12, 12), (6, 6), (6, 6), (1, 1)]
    assert layers[1].op == Op(
        kind="conv2d", inputs=12, outputs=16, kernel=(3, 3), stride=(2, 2), padding=(1, 1)
    )
    assert skipped == ()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.mix = nn.Conv2d(3, 5, 4, stride=4), nn.Linear(5, 7)

    def forward(self, x):
        return self.mix(self.patches(x).flatten(2).transpose(1, 2)).mean(1)


def test_a_linear_layer_runs_once_per_token():
    layers, _ = find_layers(Tokens(), ["mix"], (3, 8, 16))
    assert layers[0].in_size == (8, 1)


class Odd(SmallNet):
    """Uses its layers in ways a rewrite cannot follow."""

    def __init__(self):
        super().__init__()
        self.twice, self.never, self.by_keyword = (nn.Conv2d(12, 12, 1) for _ in range(3))
        self.functional, self.listed, self.aliased = (nn.Conv2d(12, 12, 1) for _ in range(3))
        self.list, self.alias = [self.listed], self.aliased
        self.folded, self.unbatched, self.tied = (nn.Conv2d(12, 12, 1) for _ in range(3))
        self.tie = nn.Conv2d(12, 12, 1)
        self.tie.weight = self.tied.weight

    def forward(self, x):
        x = self.narrow(self.stem(x))
        x = self.twice(self.twice(x)) + self.by_keyword(input=x)
        x = nn.functional.conv2d(x, self.functional.weight)
        x = self.tie(self.tied(self.alias(self.list[0](x))))
        x = self.folded(x.unflatten(2, (2, 6)).transpose(1, 2).flatten(0, 1))  # two halves of each image
        x = torch.stack([self.unbatched(one) for one in x[::2]])
        x = self.wide(x).relu().mean((2, 3))
        x = nn.functional.pad(x, (0, self.biased.out_channels - 16))
        return self.head(self.hidden(x.view(-1, self.hidden.in_features)))


ODD = {
    "twice": "is called 2 times in one forward pass",
    "never": "is never called",
    "by_keyword": "is never called",
    "functional": "is never called",
    "listed": "by another name",
    "aliased": "by another name",
    "hidden": "no attribute 'in_features'",
    "tied": "shares its weights",
    "tie": "shares its weights",
    "folded": "gets a map of shape (2, 12, 6, 12) for one image",
    "unbatched": "gets a map of shape (12, 6, 12) for one image",
}


def test_layers_a_rewrite_could_not_replace_are_left_out_with_the_reason():
    torch.manual_seed(0)
    net = Odd().eval()
    state, x = state_of(net), images(2)
    with torch.no_grad():
        before = net(x)
    layers, skipped = find_layers(net, ["narrow", "wide", "head", *ODD], INPUT_SHAPE)
    assert [layer.name for layer in layers] == ["narrow", "wide", "head"]
    assert {name for name, _ in skipped} == set(ODD)
    for name, reason in skipped:
        assert ODD[name] in reason
    assert same_state(net, state)  # the search for them put everything back
    assert hooks_of(net) == 0
    assert isinstance(net.hidden, nn.Linear)
    with torch.no_grad():
        assert torch.equal(net(x), before)


@pytest.mark.parametrize("name", ["transposed", "reflecting", "same", "own forward"])
def test_a_layer_without_a_description_is_left_out_with_the_reason(name):
    layer, reason = UNSUPPORTED[name]
    net = nn.Sequential(nn.Conv2d(3, 4, 1), layer, nn.Conv2d(4, 2, 1), nn.Flatten())
    layers, skipped = find_layers(net, ["0", "1", "2"], (3, 6, 6))
    assert [found.name for found in layers] == ["0", "2"]
    assert [left_out for left_out, _ in skipped] == ["1"]
    assert reason in skipped[0][1]


def test_a_grouped_convolution_is_described_and_left_to_the_methods():
    (layer,), skipped = find_layers(small_net(), ["depthwise"], INPUT_SHAPE)
    assert layer.op.groups == 16
    assert skipped == ()


def test_a_model_that_does_not_run_is_one_line_and_keeps_no_hooks():
    net = small_net()
    with pytest.raises(ModelError, match=r"does not run on a \(5, 12, 12\) image") as error:
        find_layers(net, TARGETS, (5, 12, 12))
    assert "\n" not in str(error.value)
    assert hooks_of(net) == 0


def test_an_unknown_name_leaves_no_hooks():
    net = small_net()
    with pytest.raises(ModelError, match="nowhere"):
        find_layers(net, [*TARGETS, "nowhere"], INPUT_SHAPE)
    assert hooks_of(net) == 0


def test_finding_layers_works_in_the_models_own_precision():
    layers, _ = find_layers(small_net().double(), TARGETS, INPUT_SHAPE)
    assert len(layers) == len(TARGETS)


def test_a_batch_norm_is_found_only_directly_behind_its_layer():
    net = small_net()
    found = find_batch_norms(net, ["stem.0", *TARGETS], INPUT_SHAPE)
    assert found == {"stem.0": net.stem[1], "narrow": net.norm1, "wide": net.norm2}
    assert hooks_of(net) == 0


class SharedNorm(SmallNet):
    def forward(self, x):
        a = self.norm1(self.narrow(self.stem(x)))
        b = self.norm1(self.narrow(self.stem(x.flip(0))))
        return self.norm2(self.wide((a + b).relu())).mean((2, 3))


def test_a_batch_norm_that_serves_two_places_is_nobodys():
    net = SharedNorm().eval()
    assert find_batch_norms(net, ["narrow", "wide"], INPUT_SHAPE) == {"wide": net.norm2}


def test_a_batch_norm_without_statistics_is_not_found():
    net = small_net()
    net.norm1 = nn.BatchNorm2d(12, track_running_stats=False)
    assert set(find_batch_norms(net, TARGETS, INPUT_SHAPE)) == {"wide"}
