"""Layers that lost inputs or outputs are fitted to the dense network on what they really see."""

import copy

import pytest
import torch
from group_nets import TINY_GROUPS, TINY_SHAPE, embedded, tiny_net
from small_nets import hooks_of, same_state, state_of
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.factors.batch_norm import correct_statistics_
from edgecompress.factors.refit_narrowed import (
    refit_narrowed_,
    remaining_outputs,
)
from edgecompress.factors.repair import repair_
from edgecompress.methods.lowrank import factorise, pair_candidate
from edgecompress.nets.chains import filled_block
from edgecompress.nets.families import Family
from edgecompress.nets.metric import PLAIN
from edgecompress.nets.modules import find_layers, layer_named, replace_, weight_of
from edgecompress.nets.narrowing import narrow_

KEPT = {"conv1": [0, 2, 3, 5, 7], "conv2": [0, 1, 4, 5, 6, 8, 9, 11], "fc1": list(range(1, 16, 2))}
LAYERS = ("conv1", "conv2", "depthwise", "fc1", "fc2")


def images(count=48, seed=0, *, parts=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *TINY_SHAPE, generator=generator, dtype=torch.float64)
    smooth = nn.functional.avg_pool2d(x, 3, stride=1, padding=1) * 2
    return list((smooth + x[:, :, :1, :1]).chunk(parts))


def narrowed_net(dense, kept=None):
    network = copy.deepcopy(dense)
    narrow_(network, TINY_GROUPS, kept or KEPT)
    return network


def repair(network, dense, *, kept=None, choices=None, batches=None):
    narrowed = remaining_outputs(dense, TINY_GROUPS, kept or KEPT)
    layers, _ = find_layers(dense, LAYERS, TINY_SHAPE)
    choices = choices or {}
    metrics = dict.fromkeys(choices, PLAIN)
    repair_(
        network,
        dense,
        layers,
        choices,
        batches or images(),
        metrics,
        which="both",
        seed=0,
        progress=NO_PROGRESS,
        narrowed=narrowed,
    )


@torch.no_grad()
def output_of(net, name, x):
    seen = []
    hook = layer_named(net, name).register_forward_hook(lambda _, __, y: seen.append(y))
    net(x)
    hook.remove()
    return seen[0]


@torch.no_grad()
def distance(net, dense, seed=0):
    x = torch.cat(images(seed=seed))
    return float((net(x) - dense(x)).square().mean() / dense(x).var())


@pytest.mark.parametrize("name", ["tiny", "fashion_resnet", "fashion_vit"])
def test_the_outputs_that_remain_are_those_narrowing_keeps(name):
    dense, groups = (tiny_net(), TINY_GROUPS) if name == "tiny" else embedded(name)
    kept = {group.name: list(range(1, group.width, 3)) for group in groups[1:]}  # the first stays whole
    network = copy.deepcopy(dense)
    narrow_(network, groups, kept)
    narrowed = remaining_outputs(dense, groups, kept)
    changed = {
        name
        for name, module in network.named_modules()
        if isinstance(getattr(module, "weight", None), torch.Tensor)
        and module.weight.shape != layer_named(dense, name).weight.shape
    }
    assert set(narrowed) == changed
    for name, rows in narrowed.items():
        ours, theirs = layer_named(network, name), layer_named(dense, name)
        if ours.bias is not None:
            assert torch.equal(ours.bias, theirs.bias[rows])
        assert len(ours.weight) == len(rows)


def test_a_network_that_computes_the_same_stays_the_same():
    dense = tiny_net()
    gone = {group.name: sorted(set(range(group.width)) - set(KEPT[group.name])) for group in TINY_GROUPS}
    with torch.no_grad():
        for name, module in (("conv1", dense.bn1), ("conv2", dense.bn3), ("fc1", dense.fc1)):
            module.weight[gone[name]] = 0
            module.bias[gone[name]] = 0
    network = narrowed_net(dense)
    assert distance(network, dense) < 1e-20
    repair(network, dense)
    assert distance(network, dense) < 1e-16


def test_repair_brings_the_network_closer_on_its_images_and_on_others():
    dense = tiny_net()
    network = narrowed_net(dense)
    before = distance(network, dense), distance(network, dense, seed=50)
    repair(network, dense, batches=images(160, seed=3))
    assert distance(network, dense) < 0.5 * before[0]
    assert distance(network, dense, seed=50) < 0.5 * before[1]


def test_a_layer_is_fitted_by_least_squares():
    """As good on its images as a solver that sees them all; taps and missing inputs included."""
    torch.manual_seed(0)
    original = nn.Conv2d(6, 5, 3, padding=1, dtype=torch.float64)
    kept, rows = [0, 2, 5], torch.tensor([0, 1, 3])
    mix = torch.randn(6, 3, dtype=torch.float64)
    x = torch.randn(40, 3, 6, 6, dtype=torch.float64)
    teacher = torch.einsum("oc,nchw->nohw", mix, x) + 0.1 * torch.randn(40, 6, 6, 6, dtype=torch.float64)
    student = teacher[:, kept] + 1
    module = nn.Conv2d(3, 3, 3, padding=1, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(original.weight[rows][:, kept])
        shift = refit_narrowed_(module, original, rows, student.split(20), teacher.split(20), 0)
        wanted = nn.functional.conv2d(teacher, original.weight[rows], padding=1)
        found = nn.functional.conv2d(student, module.weight, padding=1)
    patches = nn.functional.unfold(student, 3, padding=1).transpose(1, 2).flatten(0, 1)
    y = wanted.flatten(2).transpose(1, 2).flatten(0, 1)
    patches, y = patches - patches.mean(0), y - y.mean(0)
    best = (patches @ torch.linalg.lstsq(patches, y).solution - y).square().mean()
    error = (found - wanted + shift[:, None, None]).square().mean()
    assert best <= error < 1.001 * best
    torch.testing.assert_close((found - wanted).mean((0, 2, 3)), -shift)


def test_means_are_those_of_the_dense_network_afterwards():
    dense = tiny_net()
    network = narrowed_net(dense)
    repair(network, dense)
    x = torch.cat(images())
    rows = remaining_outputs(dense, TINY_GROUPS, KEPT)
    for name in ("bn1", "bn2", "bn3", "fc1", "fc2"):  # a batch norm or the layer's own bias takes the shift
        found, wanted = output_of(network, name, x), output_of(dense, name, x)[:, rows[name]]
        dims = (0, 2, 3) if found.ndim == 4 else (0,)
        torch.testing.assert_close(found.mean(dims), wanted.mean(dims), atol=1e-6, rtol=1e-6)


def test_a_narrowed_layer_makes_up_for_errors_before_it():
    dense = tiny_net()
    kept = {"fc1": KEPT["fc1"]}
    network = narrowed_net(dense, kept)
    with torch.no_grad():
        network.bn3.weight.mul_(0.5)  # not a layer that is repaired
    before = distance(network, dense)
    repair(network, dense, kept=kept, batches=images(320))
    assert distance(network, dense) < 0.3 * before


def test_depthwise_layers_keep_their_weights():
    dense = tiny_net()
    network = narrowed_net(dense)
    before = copy.deepcopy(network)
    repair(network, dense)
    assert torch.equal(network.depthwise.weight, before.depthwise.weight)
    assert not torch.equal(network.depthwise.bias, before.depthwise.bias)
    assert not torch.equal(network.conv2.weight, before.conv2.weight)


def test_a_depthwise_layer_with_one_channel_left_is_still_depthwise():
    """It has one group then, like an ordinary layer, but its original has not."""
    dense, kept = tiny_net(), {"conv2": [4]}
    network = narrowed_net(dense, kept)
    before, weight = distance(network, dense), network.depthwise.weight.clone()
    repair(network, dense, kept=kept, batches=images(160))
    assert network.depthwise.weight.shape == (1, 1, 3, 3)
    assert torch.equal(network.depthwise.weight, weight)
    assert distance(network, dense) < before


def test_few_images_are_not_learnt_by_heart():
    """Sixteen images for forty-eight inputs: least squares would fit them exactly and be wrong on others."""
    torch.manual_seed(0)
    original = nn.Linear(64, 8, dtype=torch.float64)
    kept, rows = list(range(48)), torch.arange(8)
    module = nn.Linear(48, 8, dtype=torch.float64)
    x, unseen = torch.randn(2, 400, 64, dtype=torch.float64)

    def error(module):
        missed = (original(unseen) - module(unseen[:, kept])).square().mean()
        return float(missed.detach())

    errors = {}
    for count in (16, 400):
        with torch.no_grad():
            module.weight.copy_(original.weight[:, kept])
            module.bias.copy_(original.bias)
            before = error(module)
            refit_narrowed_(module, original, rows, [x[:count, kept]], [x[:count]], 0)
        errors[count] = error(module)
    assert errors[16] < 1.05 * before
    assert errors[400] < 1.25 * before  # nothing can be made up for here: inputs have nothing in common


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_images_do_no_harm(count):
    dense = tiny_net()
    network = narrowed_net(dense)
    repair(network, dense, batches=images(count, parts=1))
    assert all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values())


def test_blocks_and_narrowed_layers_are_repaired_together():
    dense, kept = tiny_net(), {"fc1": KEPT["fc1"]}
    layers, _ = find_layers(dense, ["conv2"], TINY_SHAPE)
    choice = pair_candidate(layers[0], Family("S2"), 3)
    network = narrowed_net(dense, kept)
    kernels = factorise(weight_of(dense.conv2), layers[0], PLAIN)(choice)
    replace_(network, "conv2", filled_block(choice.blocks[0], kernels, dense.conv2.bias).double())
    before = state_of(network)
    distances = [distance(network, dense)]
    repair(network, dense, kept=kept, choices={"conv2": choice}, batches=images(160))
    distances.append(distance(network, dense))
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {"conv2.0.weight", "conv2.1.weight", "fc1.weight", "fc2.weight"} <= changed
    assert "depthwise.weight" not in changed
    assert distances[1] < 0.5 * distances[0]


def test_the_dense_network_and_its_hooks_are_left_alone():
    dense = tiny_net()
    state, network = state_of(dense), narrowed_net(dense)
    repair(network, dense)
    correct_statistics_(network, dense, images(), narrowed=remaining_outputs(dense, TINY_GROUPS, KEPT))
    assert same_state(dense, state)
    assert hooks_of(dense) == hooks_of(network) == 0


# Batch norms


def test_statistics_are_counted_from_the_dense_channels_that_stay():
    dense = tiny_net()
    network = narrowed_net(dense)
    narrowed = remaining_outputs(dense, TINY_GROUPS, KEPT)
    assert correct_statistics_(network, dense, images(), narrowed=narrowed) == 3
    x = torch.cat(images())
    for norm, layer in (("bn1", "conv1"), ("bn2", "conv2"), ("bn3", "depthwise")):
        ours, theirs, rows = layer_named(network, norm), layer_named(dense, norm), narrowed[norm]
        made, wanted = output_of(network, layer, x), output_of(dense, layer, x)[:, rows]
        shift = made.mean((0, 2, 3)) - wanted.mean((0, 2, 3))
        torch.testing.assert_close(ours.running_mean, theirs.running_mean[rows] + shift)
        ratio = made.var((0, 2, 3), correction=0) / wanted.var((0, 2, 3), correction=0)
        torch.testing.assert_close(ours.running_var, theirs.running_var[rows] * ratio.clamp(0.25, 4))


def test_correcting_twice_is_correcting_once():
    dense = tiny_net()
    network = narrowed_net(dense)
    narrowed = remaining_outputs(dense, TINY_GROUPS, KEPT)
    repair(network, dense)
    correct_statistics_(network, dense, images(), narrowed=narrowed)
    once = state_of(network)
    correct_statistics_(network, dense, images(), narrowed=narrowed)
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, once[name])
