"""LoRITa: products of factors compute what a weight did, decay makes them low-rank, merging undoes them."""

import copy
import itertools
import math

import pytest
import torch
from small_nets import images, same_state, small_net, state_of
from torch import nn
from torch.nn.utils import parametrize

from edgecompress.core.plugins import discover
from edgecompress.errors import ConfigError, ModelError
from edgecompress.methods.lowrank import split
from edgecompress.nets.families import Family
from edgecompress.nets.metric import PLAIN
from edgecompress.nets.modules import op_of, weight_of
from edgecompress.nets.zoo.embedded import FashionResNet, FashionViT
from edgecompress.train import optimisers
from edgecompress.train.checkpoint import load_state, save_state
from edgecompress.train.contract import Batch, MethodOptions
from edgecompress.train.factored import FLOOR, factor_, factorable, split_rows
from edgecompress.train.methods import lorita
from edgecompress.train.objectives import from_labels
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings, parameter_groups
from edgecompress.train.ranks_used import ranks_used

OPTIMISERS = discover(optimisers, Optimiser)


class Mixer(nn.Module):
    """Tokens that torch's own attention mixes, between an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, 6)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = tokens + self.mix(tokens, tokens, tokens, need_weights=False)[0]
        return self.head((tokens + self.mlp(tokens)).mean(1))


def seeded(build):
    torch.manual_seed(0)
    return build().eval()


NETS = {
    "convolutions": (small_net, (3, 12, 12)),
    "residual": (lambda: seeded(lambda: FashionResNet(10)), (1, 28, 28)),
    "transformer": (lambda: seeded(lambda: FashionViT(10, width=16, depth=2, heads=2)), (1, 28, 28)),
    "torch's attention": (lambda: seeded(Mixer), (3, 12, 12)),
}
EVERY_NET = pytest.mark.parametrize("name", NETS)


def begun(network, factors, **options):
    return lorita.begin(network, MethodOptions(factors=factors, **options))


def factors_of(module, tensor="weight"):
    return list(module.parametrizations[tensor].parameters())


def step_(course, optimiser, batch):
    optimiser.zero_grad()
    course.network.train()
    course.backward(from_labels(), batch)
    optimiser.step()


def some_batch(shape, *, count=8, seed=0):
    labels = torch.arange(count) % 6
    return Batch(images(count, seed=seed, shape=shape), labels, count, 0)


# What the network computes


@EVERY_NET
@pytest.mark.parametrize("factors", [2, 3])
@pytest.mark.parametrize("start", ["balanced", "orthogonal"])
def test_factored_network_and_what_is_merged_compute_what_the_network_did(name, factors, start):
    build, shape = NETS[name]
    network = build().double()
    x = images(4, shape=shape, dtype=torch.float64)
    with torch.no_grad():
        before = network(x)
        course = begun(copy.deepcopy(network), factors, start=start)
        torch.testing.assert_close(course.network(x), before, rtol=0, atol=1e-10)
        torch.testing.assert_close(course.finish()(x), before, rtol=0, atol=1e-10)
        scale = float(before.abs().max())
        single = begun(build(), factors, start=start)
        torch.testing.assert_close(single.network(x.float()), before.float(), rtol=0, atol=1e-5 * scale)


@EVERY_NET
def test_after_training_the_merged_network_is_the_factored_one(name):
    build, shape = NETS[name]
    course = begun(build(), 3)
    optimiser = torch.optim.SGD(course.network.parameters(), lr=1e-3)
    before = course.finish()
    for seed in range(3):
        step_(course, optimiser, some_batch(shape, seed=seed))
    merged, x = course.finish(), images(4, shape=shape)
    assert not merged.training
    with torch.no_grad():
        want = course.network.eval()(x)
        torch.testing.assert_close(merged(x), want, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(before(x), want, rtol=0, atol=1e-4)


@EVERY_NET
def test_what_is_merged_is_of_the_original_architecture(name):
    build, _ = NETS[name]
    course = begun(build(), 2)
    merged, original = course.finish(), build()
    assert [type(m) for m in merged.modules()] == [type(m) for m in original.modules()]
    assert list(merged.state_dict()) == list(original.state_dict())
    original.load_state_dict(merged.state_dict(), strict=True)
    assert any(parametrize.is_parametrized(m) for m in course.network.modules())


def test_one_factor_leaves_the_network_untouched():
    network = small_net()
    state, kinds = state_of(network), [type(m) for m in network.modules()]
    course = begun(network, 1)
    assert course.network is network
    assert same_state(network, state) and [type(m) for m in network.modules()] == kinds


def test_without_factors_or_layers_the_user_is_told():
    with pytest.raises(ConfigError, match="--factors 0: must be 1 or more"):
        begun(small_net(), 0)
    with pytest.raises(ModelError, match="no linear layer or ungrouped convolution"):
        begun(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)), 2)


# Which layers


def factored_names(network):
    return [place.name for place in factorable(network)]


def test_grouped_convolutions_are_left_alone():
    names = factored_names(small_net())
    assert names == [f"{one}.weight" for one in ("stem.0", "narrow", "wide", "biased", "hidden", "head")]


def test_patch_embedding_and_head_of_a_transformer_are_left_alone():
    names = factored_names(FashionViT(10, width=16, depth=1, heads=2))
    layers = ("attn.q", "attn.k", "attn.v", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert names == [f"blocks.0.{one}.weight" for one in layers]
    ours = ["mix.in_proj_weight", "mix.out_proj.weight", "mlp.0.weight", "mlp.2.weight"]
    assert factored_names(Mixer()) == ours


def test_weights_that_are_frozen_or_shared_are_left_alone():
    network = small_net()
    network.narrow.requires_grad_(False)
    network.hidden = nn.Linear(20, 20)
    network.again = nn.Linear(20, 20)
    network.again.weight = network.hidden.weight
    assert factored_names(network) == [f"{one}.weight" for one in ("stem.0", "wide", "biased", "head")]


@pytest.mark.parametrize("factors", [2, 3, 4])
def test_extra_parameters_are_squares_of_outputs_or_inputs(factors):
    network = small_net()
    network.point = nn.Conv2d(16, 24, 1)
    before = sum(one.numel() for one in network.parameters())
    course = begun(network, factors)
    outputs, inputs = (8, 12, 16, 20), (20, 16, 16)  # k x k convolutions; linear layers and 1 x 1
    squares = sum(side**2 for side in (*outputs, *inputs))
    after = sum(one.numel() for one in course.network.parameters())
    assert after - before == (factors - 1) * squares


# Gradients and decay


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(5, 7, 3, padding=1),
        nn.Conv2d(5, 7, 3, stride=2),
        nn.Conv2d(5, 7, 1, stride=2),
        nn.Linear(5, 7),
    ],
    ids=["stride 1", "stride 2", "1 x 1", "linear"],
)
def test_gradients_of_factors_follow_from_that_of_the_weight(layer):
    layer = copy.deepcopy(layer).double()
    dense = copy.deepcopy(layer)
    x = images(3, shape=(5, 8, 8), dtype=torch.float64)
    x = x.flatten(2).transpose(1, 2) if isinstance(layer, nn.Linear) else x
    factor_(layer, factorable(layer), 3)
    factors = factors_of(layer)
    for one in (layer, dense):
        one(x).square().sum().backward()
    whole = dense.weight.grad.flatten(1)
    f1, f2, f3 = (one.detach() for one in factors)
    wanted = (f2.T @ f3.T @ whole, f3.T @ whole @ f1.T, whole @ f1.T @ f2.T)
    for factor, want in zip(factors, wanted, strict=True):
        torch.testing.assert_close(factor.grad, want)


def test_square_factors_come_first_in_linear_layers_and_last_in_convolutions():
    course = begun(small_net(), 3)
    shapes = [tuple(one.shape) for one in factors_of(course.network.wide)]
    assert shapes == [(16, 12 * 9), (16, 16), (16, 16)]
    shapes = [tuple(one.shape) for one in factors_of(course.network.hidden)]
    assert shapes == [(20, 20), (20, 20), (16, 20)]


def penalty(factors):
    return float(sum(one.square().sum() for one in factors))


@pytest.mark.parametrize("factors", [2, 3, 4])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6)])
def test_balanced_factors_reach_the_least_penalty_and_others_do_not(factors, shape):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
    values = torch.linalg.svdvals(matrix)
    least = factors * float(values.pow(2 / factors).sum())
    found = split_rows(matrix, factors, start="balanced", seed=0)
    floor = (factors - 1) * max(0, shape[0] - shape[1]) * (FLOOR * float(values[0])) ** (2 / factors)
    assert penalty(found) == pytest.approx(least + floor)
    for one, other in itertools.pairwise(found):
        kept = min(len(one), len(other), len(values))
        torch.testing.assert_close(torch.linalg.svdvals(one)[:kept], torch.linalg.svdvals(other)[:kept])
    for seed in range(20):
        mixed = list(found)
        for place in range(factors - 1):
            twist = torch.eye(shape[0], dtype=torch.float64)
            twist += 0.3 * torch.randn(twist.shape, generator=generator, dtype=torch.float64)
            mixed[place] = twist @ mixed[place]
            mixed[place + 1] = mixed[place + 1] @ torch.linalg.inv(twist)
        torch.testing.assert_close(torch.linalg.multi_dot(mixed[::-1]), matrix)
        assert penalty(mixed) > least
        assert penalty(split_rows(matrix, factors, start="orthogonal", seed=seed)) > least


TOY = (3.306, 1.937, 1.613, 0.386, 0.203, 0.179)


def toy_values(factors, decay, *, steps=1500):
    """Returns the singular values, and factors, of what is trained to copy a matrix with those of TOY."""
    torch.manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q for _ in range(2))
    target = u * torch.tensor(TOY, dtype=torch.float64) @ v.T
    layer = nn.Linear(6, 6, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(target + 0.1 * torch.randn(6, 6, dtype=torch.float64))
    if factors > 1:
        factor_(layer, factorable(layer), factors)
    settings = OptimiserSettings(lr=0.04, momentum=0.9, weight_decay=decay)
    optimiser = OPTIMISERS["sgd"].make(layer, settings)
    for _ in range(steps):
        optimiser.zero_grad()
        (0.5 * (layer.weight - target).square().sum()).backward()
        optimiser.step()
    found = factors_of(layer) if factors > 1 else [layer.weight]
    return torch.linalg.svdvals(layer.weight.detach()), [one.detach() for one in found]


def stationary(value, factors, decay):
    """Returns the larger root of s - value + decay s^(2/N - 1), or 0 where there is none."""
    s = value
    for _ in range(200):
        if s <= 1e-3:
            return 0.0
        s -= 0.5 * (s - value + decay * s ** (2 / factors - 1))
    return s


@pytest.mark.parametrize(("factors", "kept"), [(1, 6), (2, 6), (3, 4), (4, 3)])
def test_decay_of_factors_shrinks_values_as_theory_says_and_kills_small_ones(factors, kept):
    values, found = toy_values(factors, 0.1)
    wanted = [stationary(value, factors, 0.1) for value in TOY]
    torch.testing.assert_close(values, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=2e-3)
    assert int((values > 0.01).sum()) == kept
    if factors == 2:
        torch.testing.assert_close(values, torch.tensor(TOY, dtype=torch.float64) - 0.1, rtol=0, atol=1e-6)
    assert penalty(found) == pytest.approx(factors * float(values.pow(2 / factors).sum()), rel=1e-3)


def test_without_decay_ranks_stay():
    values, _ = toy_values(4, 0.0, steps=800)
    torch.testing.assert_close(values, torch.tensor(TOY, dtype=torch.float64), rtol=0, atol=1e-2)


@EVERY_NET
@pytest.mark.parametrize("optimiser", ["sgd", "adam-l2"])
def test_every_factor_decays_and_norms_and_biases_do_not(name, optimiser):
    course = begun(NETS[name][0](), 3)
    settings = OptimiserSettings(lr=0.1, weight_decay=0.5)
    groups = OPTIMISERS[optimiser].make(course.network, settings).param_groups
    decayed = {id(one) for group in groups if group["weight_decay"] == 0.5 for one in group["params"]}
    parameters = dict(course.network.named_parameters())
    factors = [name for name in parameters if "parametrizations" in name]
    assert len(factors) == 3 * len(factorable(NETS[name][0]()))
    assert all(id(parameters[name]) in decayed for name in factors)
    vectors = [name for name, one in parameters.items() if one.ndim == 1]
    assert vectors and not any(id(parameters[name]) in decayed for name in vectors)


def test_weights_that_are_zero_can_be_learned():
    layer = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(layer.weight)
    factor_(layer, factorable(layer), 3)
    assert not layer.weight.detach().any()
    (layer.weight - torch.eye(4)).square().sum().backward()
    assert max(float(one.grad.abs().max()) for one in factors_of(layer)) > 0.1
    low = torch.zeros(4, 4)
    low[0, 0] = 1.0
    layer.weight = low
    torch.testing.assert_close(layer.weight.detach(), low)
    optimiser = torch.optim.SGD(parameter_groups(layer, 0.0), lr=0.2, momentum=0.9)
    for _ in range(300):
        optimiser.zero_grad()
        (0.5 * (layer.weight - torch.eye(4)).square().sum()).backward()
        optimiser.step()
    torch.testing.assert_close(layer.weight.detach(), torch.eye(4), rtol=0, atol=0.05)


# Copies, checkpoints, hooks


def test_a_course_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path):
    def trained(course, steps):
        optimiser = torch.optim.SGD(course.network.parameters(), lr=1e-3)
        for seed in steps:
            step_(course, optimiser, some_batch((3, 12, 12), seed=seed))

    whole, first, second = (begun(small_net(), 3, start="orthogonal") for _ in range(3))
    trained(whole, range(4))
    trained(first, range(2))
    save_state(tmp_path / "state.safetensors", first.network.state_dict(), "here")
    second.network.load_state_dict(load_state(tmp_path / "state.safetensors", "here"))
    trained(second, range(2, 4))
    assert same_state(second.finish(), state_of(whole.finish()))


def test_a_copy_is_a_network_of_its_own():
    course = begun(small_net(), 2)
    other, x = copy.deepcopy(course.network), images(2)
    with torch.no_grad():
        before = other(x)
        factors_of(course.network.narrow)[0].zero_()
        torch.testing.assert_close(other(x), before)
        assert not torch.allclose(course.network(x), before)


def test_hooks_of_factored_layers_see_what_dense_layers_would():
    network, seen = small_net(), []
    course = begun(copy.deepcopy(network), 2)
    for one in (network, course.network):
        one.wide.register_forward_hook(lambda _, __, y: seen.append(y.detach()))
        with torch.no_grad():
            one(images(2))
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4)


# Truncation


@EVERY_NET
def test_a_merged_network_cut_to_full_rank_answers_as_before(name):
    build, shape = NETS[name]
    course = begun(build().double(), 3)
    merged, x = course.finish(), images(3, shape=shape, dtype=torch.float64)
    cut = copy.deepcopy(merged)
    for place in factorable(build()):
        weight = cut.get_parameter(place.name)
        left, values, right = torch.linalg.svd(weight.detach().flatten(1), full_matrices=False)
        weight.data = (left * values @ right).reshape(weight.shape)
    with torch.no_grad():
        torch.testing.assert_close(cut(x), merged(x), rtol=0, atol=1e-10)


def test_ranks_in_use_are_values_above_a_hundredth_of_the_largest():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(4, 3))
    with torch.no_grad():
        network[0].weight.copy_(torch.diag(torch.tensor([2.0, 0.5, 0.019]))[[0, 1, 2, 2], :, None, None])
        network[3].weight.copy_(torch.eye(3, 4))
    assert ranks_used(network) == (("0", 3, 3), ("3", 3, 3))
    with torch.no_grad():
        network[0].weight.mul_(torch.tensor([1.0, 1.0, 0.5])[:, None, None])
    assert ranks_used(network)[0] == ("0", 2, 3)


@pytest.mark.parametrize("rank", [1, 3, 12])
def test_cutting_a_merged_layer_loses_what_its_dropped_values_carry(rank):
    layer = begun(small_net(), 3).finish().narrow
    kernel = weight_of(layer).double()
    left, right = split(Family("S4"), kernel, op_of(layer), PLAIN)
    lost = (left[0, :, :rank] @ right[0, :rank] - kernel.flatten(1)).norm()
    dropped = torch.linalg.svdvals(kernel.flatten(1))[rank:]
    assert float(lost) == pytest.approx(math.sqrt(float(dropped.square().sum())), abs=1e-9)
