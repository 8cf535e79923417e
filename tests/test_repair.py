"""Repair fits blocks to the dense network on what they really see, and sets their means right."""

import copy

import pytest
import torch
from small_nets import INPUT_SHAPE, hooks_of, images, same_state, small_net, state_of
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.types import Block, Candidate
from edgecompress.factors.repair import repair_
from edgecompress.methods.lowrank import factorise, pair_candidate
from edgecompress.nets.chains import filled_block
from edgecompress.nets.families import Family, max_rank
from edgecompress.nets.metric import PLAIN, LayerMetric
from edgecompress.nets.modules import find_layers, layer_named, replace_, weight_of

FAMILIES = {"narrow": Family("S2"), "wide": Family("S4"), "biased": Family("S5", 2), "hidden": Family("S4")}


@pytest.fixture(autouse=True)
def everything_in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batches(seed=0):
    return [images(24, seed=seed), images(16, seed=seed + 1)]


def dense_net():
    return small_net().double()


def choice_of(layer, rank):
    family = FAMILIES[layer.name]
    return pair_candidate(layer, family, rank or max_rank(family, layer.op))


def compressed_of(dense, *, rank=None, names=tuple(FAMILIES)):
    """Returns a network with plain factors of that rank, its layers and its choices; None: full rank."""
    layers, _ = find_layers(dense, names, INPUT_SHAPE)
    choices = {layer.name: choice_of(layer, rank) for layer in layers}
    return built(dense, layers, choices), layers, choices


def built(dense, layers, choices):
    network = copy.deepcopy(dense)
    for layer in layers:
        original, choice = layer_named(dense, layer.name), choices[layer.name]
        kernels = factorise(weight_of(original).double(), layer, PLAIN)(choice)
        replace_(network, layer.name, filled_block(choice.blocks[0], kernels, original.bias))
    return network


def repair(compressed, dense, layers, choices, *, which="both", images=None, metrics=None):
    metrics = metrics or {layer.name: PLAIN for layer in layers}
    repair_(
        compressed,
        dense,
        layers,
        choices,
        images or batches(),
        metrics,
        which=which,
        seed=0,
        progress=NO_PROGRESS,
    )


@torch.no_grad()
def output_of(net, name, x):
    """Returns what a layer, or the network, puts out."""
    seen = []
    hook = layer_named(net, name).register_forward_hook(lambda _, __, y: seen.append(y))
    net(x)
    hook.remove()
    return seen[0]


def distance(net, dense, name="head", seed=0):
    x = torch.cat(batches(seed))
    wanted = output_of(dense, name, x)
    return float((output_of(net, name, x) - wanted).square().mean() / wanted.var())


@pytest.mark.parametrize("which", ["none", "second", "both"])
def test_a_network_that_computes_the_same_stays_the_same(which):
    dense = dense_net()
    compressed, layers, choices = compressed_of(dense)
    repair(compressed, dense, layers, choices, which=which)
    assert distance(compressed, dense) < 1e-6


@pytest.mark.parametrize("which", ["second", "both"])
def test_repair_brings_the_network_closer_on_its_images_and_on_others(which):
    dense = dense_net()
    compressed, layers, choices = compressed_of(dense, rank=3)
    before = distance(compressed, dense), distance(compressed, dense, seed=50)
    repair(compressed, dense, layers, choices, which=which)
    after = distance(compressed, dense), distance(compressed, dense, seed=50)
    assert after[0] < 0.5 * before[0]
    assert after[1] < 0.5 * before[1]


@pytest.mark.parametrize("which", ["second", "both"])
def test_a_layer_makes_up_for_errors_before_it(which):
    """Its kernel is the dense one already; only its inputs are wrong."""
    dense = dense_net()
    compressed, layers, choices = compressed_of(dense, names=("wide",))
    with torch.no_grad():
        compressed.narrow.weight.mul_(0.6)
    means_only = copy.deepcopy(compressed)
    repair(means_only, dense, layers, choices, which="none")
    repair(compressed, dense, layers, choices, which=which)
    assert distance(compressed, dense, "norm2") < 0.5 * distance(means_only, dense, "norm2")


def test_fitting_all_layers_is_at_least_as_good_as_fitting_the_last():
    dense = dense_net()
    found = {}
    for which in ("none", "second", "both"):
        compressed, layers, choices = compressed_of(dense, rank=3, names=("wide",))
        repair(compressed, dense, layers, choices, which=which)
        found[which] = distance(compressed, dense, "norm2")
    assert found["both"] < found["second"] < found["none"]


@pytest.mark.parametrize("which", ["none", "second", "both"])
def test_means_are_those_of_the_dense_network_afterwards(which):
    dense = dense_net()
    compressed, layers, choices = compressed_of(dense, rank=2)
    repair(compressed, dense, layers, choices, which=which)
    x = torch.cat(batches())
    for name in (
        "norm1",
        "norm2",
        "biased",
        "hidden",
    ):  # a batch norm or the layer's own bias takes the shift
        found, wanted = (output_of(net, name, x).transpose(0, 1).flatten(1) for net in (compressed, dense))
        torch.testing.assert_close(found.mean(1), wanted.mean(1), rtol=1e-6, atol=1e-6)


def test_without_refit_only_means_move():
    dense = dense_net()
    compressed, layers, choices = compressed_of(dense, rank=2)
    before = state_of(compressed)
    repair(compressed, dense, layers, choices, which="none")
    changed = {n for n, value in compressed.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {"norm1.running_mean", "norm2.running_mean", "biased.1.bias", "hidden.1.bias"}


def test_repairing_twice_changes_hardly_anything_more():
    dense = dense_net()
    compressed, layers, choices = compressed_of(dense, rank=3)
    before = copy.deepcopy(compressed)
    repair(compressed, dense, layers, choices, which="second")
    once = copy.deepcopy(compressed)
    repair(compressed, dense, layers, choices, which="second")
    assert distance(compressed, once) < 1e-3 * distance(once, before)


def test_the_dense_network_and_layers_not_chosen_are_left_alone():
    dense = dense_net()
    state = state_of(dense)
    compressed, _, choices = compressed_of(dense, rank=3, names=("wide",))
    before = state_of(compressed)
    repair(compressed, dense, find_layers(dense, FAMILIES, INPUT_SHAPE)[0], choices)
    assert same_state(dense, state)
    assert hooks_of(dense) == hooks_of(compressed) == 0
    changed = {n for n, value in compressed.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {"wide.0.weight", "wide.1.weight", "norm2.running_mean"}


def test_the_output_weight_decides_which_outputs_are_served_first():
    dense = dense_net()
    errors = {}
    for served in (0, 1):
        weight = torch.full((16,), 1e-3)
        weight[served * 8 : served * 8 + 8] = 1
        compressed, layers, choices = compressed_of(dense, rank=2, names=("wide",))
        metrics = {"wide": LayerMetric(output=torch.diag(weight))}
        repair(compressed, dense, layers, choices, metrics=metrics)
        x = torch.cat(batches())
        missed = output_of(compressed, "norm2", x) - output_of(dense, "norm2", x)
        errors[served] = missed.square().mean((0, 2, 3))
    assert errors[0][:8].sum() < errors[1][:8].sum()
    assert errors[1][8:].sum() < errors[0][8:].sum()


def test_two_branches_are_fitted_together_and_share_one_bias():
    dense = dense_net()
    layers, _ = find_layers(dense, ["biased"], INPUT_SHAPE)
    parts = [pair_candidate(layers[0], Family(kind), 2).blocks[0].branches[0] for kind in ("S2", "S5")]
    last = parts[1][-1].model_copy(update={"bias": False})
    block = Block(branches=(parts[0], (parts[1][0], last)))
    choice = Candidate(
        method="lowrank", family="S2+S5", ranks=(2, 2), layers=("biased",), blocks=(block,), params=1, macs=1
    )
    torch.manual_seed(0)
    kernels = tuple(
        tuple(0.1 * torch.randn(op.outputs, op.inputs // op.groups, *op.kernel) for op in branch)
        for branch in block.branches
    )
    compressed = copy.deepcopy(dense)
    replace_(compressed, "biased", filled_block(block, kernels, dense.biased.bias))
    before = distance(compressed, dense, "biased")
    repair(compressed, dense, layers, {"biased": choice}, which="second")
    assert distance(compressed, dense, "biased") < 0.5 * before


class Bright(nn.Module):
    """Gives its layers inputs that are almost all mean, as bright images without normalisation do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 12, 3), nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.conv(500 + 0.01 * x).mean((2, 3)))


def test_inputs_that_are_almost_all_mean_are_fitted_in_float32_too():
    dense = Bright().float().eval()
    layers, _ = find_layers(dense, ["conv"], INPUT_SHAPE)
    choices = {"conv": pair_candidate(layers[0], Family("S4"), 2)}
    compressed = built(dense, layers, choices).float()
    repair(compressed, dense, layers, choices, images=[batch.float() for batch in batches()])
    x = torch.cat(batches()).float()
    found, wanted = output_of(compressed, "conv", x), output_of(dense, "conv", x)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0.2)
    assert bool(found.isfinite().all())
