"""Units go from weights, statistics and attributes alike, or an error says why and nothing has changed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_nets import INPUT_SHAPE, images, same_state, small_net, state_of
from torch import nn
from width_nets import randomised

from edgecompress.core.types import Cut, Group, ModelRef, Plan, Preprocess
from edgecompress.errors import ArtefactError, ModelError
from edgecompress.nets.artefact import load, save_artefact
from edgecompress.nets.attention import Attention
from edgecompress.nets.narrowing import entries, narrow_, narrow_like_, zeroed


def group(name, width, *cuts, kind="channels", gates=()):
    made = tuple(Cut(module=module, axis=axis, **where) for module, axis, where in cuts)
    return Group(name=name, kind=kind, width=width, cuts=made, gates=tuple(made[i] for i in gates))


def wide_group():
    """Returns the channels of `small_net` that also run through its depthwise convolution."""
    cuts = [("wide", "outputs", {}), ("norm2", "channels", {}), ("depthwise", "channels", {})]
    return group("wide", 16, *cuts, ("biased", "inputs", {}), gates=(2,))


def tensors(module):
    return [*module.parameters(), *module.buffers()]


@given(
    repeats=st.integers(1, 4),
    run=st.integers(1, 5),
    offset=st.integers(0, 7),
    width=st.integers(1, 9),
    data=st.data(),
)
def test_entries_of_units_are_where_the_cut_says(repeats, run, offset, width, data):
    cut = Cut(module="m", axis="inputs", repeats=repeats, run=run, offset=offset)
    units = data.draw(st.lists(st.integers(0, width - 1), unique=True, min_size=1).map(sorted))
    axis = [-1] * offset + [unit for _ in range(repeats) for unit in range(width) for _ in range(run)]
    found = entries(cut, units, width).tolist()
    assert found == [entry for entry, unit in enumerate(axis) if unit in units]


def test_weights_statistics_and_attributes_get_smaller_alike():
    net = small_net()
    before = state_of(net)
    narrow_(net, [wide_group()], {"wide": [0, 3, 9]})
    kept = torch.tensor([0, 3, 9])
    assert torch.equal(net.wide.weight, before["wide.weight"][kept])
    assert torch.equal(net.depthwise.weight, before["depthwise.weight"][kept])
    assert torch.equal(net.depthwise.bias, before["depthwise.bias"][kept])
    assert torch.equal(net.norm2.running_var, before["norm2.running_var"][kept])
    assert torch.equal(net.norm2.bias, before["norm2.bias"][kept])
    assert torch.equal(net.biased.weight, before["biased.weight"][:, kept])
    assert torch.equal(net.biased.bias, before["biased.bias"])
    assert (net.wide.out_channels, net.norm2.num_features, net.biased.in_channels) == (3, 3, 3)
    assert (net.depthwise.in_channels, net.depthwise.out_channels, net.depthwise.groups) == (3, 3, 3)


def test_a_narrowed_network_can_be_trained_and_frozen_weights_stay_frozen():
    net = small_net().train()
    net.wide.weight.requires_grad_(False)
    narrow_(net, [wide_group()], {"wide": range(4)})
    net(images(4)).sum().backward()
    assert net.biased.weight.grad.shape == net.biased.weight.shape
    assert not net.wide.weight.requires_grad
    assert net.wide.weight.grad is None
    assert all(p.is_leaf for p in net.parameters())


def test_removed_units_count_for_nothing_once_they_are_zero():
    net, x = small_net(), images(3)
    kept = {"wide": [1, 2, 7, 11, 15]}
    with torch.no_grad(), zeroed(net, [wide_group()], kept):
        expected = net(x)
    narrow_(net, [wide_group()], kept)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-5)


def test_zeros_end_with_the_block_even_after_an_error():
    net, x = small_net(), images(2)
    before = net(x)
    with pytest.raises(KeyError), zeroed(net, [wide_group()], {"wide": [0]}):
        assert not torch.allclose(net(x), before)
        raise KeyError
    assert torch.equal(net(x), before)


def test_groups_side_by_side_do_not_move_each_other():
    conv, head = nn.Conv2d(3, 10, 1), nn.Conv2d(10, 2, 1)
    left = group("left", 4, ("0", "outputs", {}), ("1", "inputs", {}))
    right = group("right", 6, ("0", "outputs", {"offset": 4}), ("1", "inputs", {"offset": 4}))
    net = randomised(nn.Sequential(conv, head))
    before = state_of(net)
    narrow_(net, [left, right], {"left": [3], "right": [0, 5]})
    assert torch.equal(net[0].weight, before["0.weight"][[3, 4, 9]])
    assert torch.equal(net[1].weight, before["1.weight"][:, [3, 4, 9]])


def test_heads_get_narrower_together_and_the_scale_stays():
    attention = Attention(nn.Linear(8, 24), nn.Linear(8, 8), heads=2, head_dim=4, scale=0.5)
    net = randomised(nn.ModuleDict({"attn": attention}))
    before = state_of(net)
    cuts = [("attn.qkv", "outputs", {"repeats": 6}), ("attn.proj", "inputs", {"repeats": 2})]
    dims = group("attn", 4, *cuts, ("attn", "head_dim", {}), kind="head_dim", gates=(0,))
    narrow_(net, [dims], {"attn": [0, 2, 3]})
    assert (attention.head_dim, attention.scale) == (3, 0.5)
    rows = [4 * part + unit for part in range(6) for unit in (0, 2, 3)]
    assert torch.equal(attention.qkv.weight, before["attn.qkv.weight"][rows])
    assert torch.equal(attention.proj.weight, before["attn.proj.weight"][:, rows[:6]])


def test_whole_groups_are_left_alone():
    net = small_net()
    before = state_of(net)
    assert narrow_(net, [wide_group()], {}) == ()
    assert narrow_(net, [wide_group()], {"wide": range(16)}) == ()
    assert same_state(net, before)


def test_what_was_done_is_told_and_can_be_done_again():
    net, again = small_net(), small_net(seed=4)
    (told,) = narrow_(net, [wide_group()], {"wide": [2, 5]})
    assert (told.group, told.before, told.after, told.cuts) == ("wide", 16, 2, wide_group().cuts)
    narrow_like_(again, [told])
    assert [t.shape for t in tensors(again)] == [t.shape for t in tensors(net)]


HEAD = ("head", "inputs", {})
FAULTS = {
    "nothing left": (wide_group(), [], "no unit would be left"),
    "an unknown unit": (wide_group(), [3, 16], "ascending numbers below 16"),
    "a unit before the first": (wide_group(), [-1, 3], "ascending numbers below 16"),
    "units in disorder": (wide_group(), [3, 1], "ascending numbers below 16"),
    "a unit twice": (wide_group(), [3, 3], "ascending numbers below 16"),
    "an unknown layer": (group("g", 16, HEAD, ("nowhere", "inputs", {})), [0], "'nowhere'"),
    "too few entries": (group("g", 40, HEAD), [0], "head: has 16 inputs, no entry 39"),
    "outputs of a depthwise layer": (
        group("g", 16, HEAD, ("depthwise", "outputs", {})),
        [0],
        "has 16 groups",
    ),
    "channels of a plain layer": (group("g", 16, HEAD, ("biased", "channels", {})), [0], "not a depthwise"),
    "a layer of another kind": (
        group("g", 16, HEAD, ("stem.2", "channels", {})),
        [0],
        "ReLU cannot be narrowed",
    ),
    "no heads": (
        group("g", 16, HEAD, ("head", "head_dim", {})),
        [0],
        "head: has heads of None dimensions, not of 16",
    ),
}


@pytest.mark.parametrize("group, kept, message", FAULTS.values(), ids=FAULTS)
def test_what_does_not_fit_is_one_line_and_changes_nothing(group, kept, message):
    net = small_net()
    before = state_of(net)
    with pytest.raises(ModelError) as error:
        narrow_(net, [group], {group.name: kept})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert same_state(net, before)


def test_a_plan_for_another_network_is_found_out(tmp_path):
    net = small_net()
    narrowings = narrow_(net, [wide_group()], {"wide": [2, 5]})
    ref = ModelRef(source="python:small_nets:small_net", preprocess=Preprocess(size=INPUT_SHAPE[1:]))
    save_artefact(tmp_path, Plan(model=ref, narrowings=narrowings), net)
    x = images(2)
    with torch.no_grad():
        assert torch.equal(load(tmp_path, model=small_net(seed=9))(x), net(x))
    with pytest.raises(ArtefactError, match="plan of another model"):
        load(tmp_path, model=nn.Sequential(nn.Conv2d(3, 4, 1)))
