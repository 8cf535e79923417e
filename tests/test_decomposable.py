"""Decomposable-Net and trained rank pruning: one step by hand, ranks, statistics, checkpoints, processes."""

import copy
import itertools
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgecompress.core.costs import chain_macs, op_params
from edgecompress.data.splits import Split
from edgecompress.errors import ConfigError, ModelError
from edgecompress.nets.families import fold, pair_ops
from edgecompress.nets.modules import module_of, op_of
from edgecompress.train import parallel
from edgecompress.train.contract import Batch, MethodOptions, backward_once
from edgecompress.train.images import TrainingImages
from edgecompress.train.loop import TrainSettings, fit
from edgecompress.train.methods import decomposable, plain, trp
from edgecompress.train.objectives import from_labels
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.schedules import parse_schedule
from edgecompress.train.svd_gradient import cut, decompose, pull_back
from edgecompress.train.truncation import energy_rank, family_of, global_ranks, matrix_weights

CLASSES, SIDE = 4, 8
MODES = ("channel", "spatial")


class Net(nn.Module):
    def __init__(self, *, dropout=0.0):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.conv2, self.norm2 = nn.Conv2d(8, 10, 3, stride=2, padding=1), nn.BatchNorm2d(10)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x):
        x = self.depthwise(self.norm1(self.conv1(x)).relu())
        x = self.norm2(self.conv2(x)).relu().mean((2, 3))
        return self.head(self.dropout(x))


def net(*, seed=0, dtype=torch.float32, dropout=0.0):
    torch.manual_seed(seed)
    return Net(dropout=dropout).to(dtype).train()


class Images:
    """Images whose class is in which quarter they are bright."""

    name, classes = "quarters", CLASSES

    def __init__(self, count):
        generator = torch.Generator().manual_seed(5)
        self._labels = torch.randint(0, CLASSES, (count,), generator=generator)
        self._images = 0.7 * torch.randn(count, 2, SIDE, SIDE, generator=generator)
        half = SIDE // 2
        for image, label in zip(self._images, self._labels.tolist(), strict=True):
            top, left = half * (label // 2), half * (label % 2)
            image[label % 2, top : top + half, left : left + half] += 1.0

    def __len__(self):
        return len(self._labels)

    def labels(self):
        return self._labels

    def images(self, indices):
        return self._images[list(indices)]


def training_images(count=96, batch=16):
    return TrainingImages(Split(Images(count), tuple(range(count)), "calibration"), batch, (), 0)


def batch_of(step=0, *, dtype=torch.float32, count=12):
    found = training_images(batch=count).batch(step)
    return Batch(found.images.to(dtype), found.labels, found.whole, step)


def options(**changed):
    return MethodOptions(**{"smallest": 0.3, "largest": 0.6, "least_rank": 2, "refresh": 3, **changed})


def grads_of(network):
    return {name: one.grad.clone() for name, one in network.named_parameters()}


def task_of(course):
    return course.backward.args[0]


# ranks


def test_the_kept_values_are_the_largest_of_all_layers():
    values = [torch.tensor([9.0, 4.0, 1.0]), torch.tensor([8.0, 7.0, 6.0, 5.0]), torch.tensor([0.5])]
    assert global_ranks(values, 0.5, 0) == [1, 3, 0]
    assert global_ranks(values, 0.5, 1) == [1, 3, 1]
    assert global_ranks(values, 1.0, 1) == [3, 4, 1]
    assert global_ranks(values, 0.01, 2) == [2, 2, 1]  # the floor ends where a layer has no more


@given(seed=st.integers(0, 99), least=st.integers(1, 4))
def test_ranks_rise_with_the_share(seed, least):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.rand(n, generator=generator).sort(descending=True).values for n in (3, 5, 9)]
    ranks = [global_ranks(values, share / 20, least) for share in range(1, 21)]
    for fewer, more in itertools.pairwise(ranks):
        assert all(a <= b for a, b in zip(fewer, more, strict=True))
    assert all(rank >= min(least, len(one)) for rank, one in zip(ranks[0], values, strict=True))


def test_the_drawn_share_follows_from_seed_and_step():
    drawn = [decomposable.drawn_share(options(seed=1), step) for step in range(200)]
    assert drawn == [decomposable.drawn_share(options(seed=1), step) for step in range(200)]
    assert drawn != [decomposable.drawn_share(options(seed=2), step) for step in range(200)]
    assert 0.3 <= min(drawn) < 0.32 and 0.58 < max(drawn) <= 0.6


def test_grouped_convolutions_and_norms_are_left_alone_and_nothing_is_an_error():
    names = [one.layer for one in matrix_weights(net(), "channel")]
    assert names == ["conv1", "conv2", "head"]
    with pytest.raises(ModelError, match="trainable weight to cut"):
        matrix_weights(nn.Conv2d(4, 4, 3, groups=4), "channel")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("conv", [(1, 1), (2, 1), (2, 0)], ids=str)
def test_two_layers_at_full_rank_compute_what_one_does_and_cost_what_the_paper_says(mode, conv):
    torch.manual_seed(0)
    stride, padding = conv
    layer = nn.Conv2d(3, 6, 3, stride=stride, padding=padding, dtype=torch.float64)
    (weight,) = matrix_weights(layer, mode)
    parts = decompose(weight.matrix())
    root, op, rank = parts.values.sqrt(), op_of(layer), weight.max_rank
    family = family_of(op, mode)
    kernels = fold(family, (parts.left * root)[None], (parts.right * root).mT[None], op)
    pair = [module_of(one).double() for one in pair_ops(family, op, rank)]
    with torch.no_grad():
        for one, kernel in zip(pair, kernels, strict=True):
            one.weight.copy_(kernel)
        pair[1].bias.copy_(layer.bias)
    images = torch.randn(2, 3, 9, 7, dtype=torch.float64)
    found, wanted = pair[1](pair[0](images)), layer(images)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    (inner, outer), (height, width) = pair_ops(family, op, rank), wanted.shape[2:]
    if mode == "channel":
        assert op_params(inner) + op_params(outer) - 6 == rank * (9 * 3 + 6)
        assert chain_macs((inner, outer), (9, 7)) == height * width * rank * (9 * 3 + 6)
    else:
        assert op_params(inner) + op_params(outer) - 6 == rank * (3 * 3 + 3 * 6)
        # the first of the two still has all rows of its input
        assert chain_macs((inner, outer), (9, 7)) == rank * (9 * 9 * width + 18 * height * width)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layer", [nn.Linear(7, 5), nn.Conv2d(7, 5, 1, stride=2)], ids=["linear", "1 x 1"])
def test_linear_layers_and_1x1_kernels_are_read_one_way_in_both_modes(mode, layer):
    layer = copy.deepcopy(layer).double()
    (weight,) = matrix_weights(layer, mode)
    op, parts = op_of(layer), decompose(weight.matrix())
    assert weight.shape == (5, 7) and weight.family == family_of(op, "channel")
    for rank in (5, 2):
        assert sum(map(op_params, pair_ops(weight.family, op, rank))) - 5 == rank * (7 + 5)
    torch.testing.assert_close(weight.values(cut(parts, 5)), layer.weight.detach(), rtol=1e-10, atol=1e-10)
    lost = (weight.values(cut(parts, 2)) - layer.weight.detach()).square().sum()
    torch.testing.assert_close(lost, parts.values[2:].square().sum())


# one step


def by_hand(network, batch, opts, step):
    """The step as the paper puts it, by other means: a copy of the network with the cut weights."""
    weights = matrix_weights(network, opts.mode)
    parts = [decompose(one.matrix()) for one in weights]
    ranks = global_ranks([one.values for one in parts], decomposable.drawn_share(opts, step), opts.least_rank)
    low = copy.deepcopy(network)
    with torch.no_grad():
        for one, part, rank in zip(weights, parts, ranks, strict=True):
            low.get_parameter(f"{one.layer}.weight").copy_(one.values(cut(part, rank)))
    full = copy.deepcopy(network)
    for each in (full, low):
        F.cross_entropy(each(batch.images), batch.labels).backward()
    g, h = grads_of(full), grads_of(low)
    for one, part, rank in zip(weights, parts, ranks, strict=True):
        name = f"{one.layer}.weight"
        back = one.values(pull_back(one.matrix(h[name]), part, rank))
        h[name] = back * g[name].norm() / back.norm()
    share = opts.low_rank_share
    return {name: (1 - share) * g[name] + share * h[name] for name in g}, full


@pytest.mark.parametrize("mode", MODES)
def test_a_step_is_the_one_of_the_paper(mode):
    network, opts = net(dtype=torch.float64), options(mode=mode, low_rank_share=0.3)
    batch = batch_of(dtype=torch.float64)
    wanted, _ = by_hand(network, batch, opts, 0)
    before = {name: one.clone() for name, one in network.named_parameters()}
    course = decomposable.begin(network, opts)
    loss = course.backward(from_labels(), batch)
    for name, gradient in grads_of(network).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-12)
    assert all(torch.equal(one, before[name]) for name, one in network.named_parameters())
    assert loss.isfinite() and not loss.requires_grad


def test_batch_norms_remember_the_first_pass_only():
    network, batch = net(), batch_of()
    _, full = by_hand(network, batch, options(), 0)
    course = decomposable.begin(network, options())
    course.backward(from_labels(), batch)
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, full.get_buffer(name)), name
    assert int(network.norm1.num_batches_tracked) == 1


def test_the_low_rank_gradient_of_a_weight_is_as_long_as_the_other_one():
    generator = torch.Generator().manual_seed(0)
    gradient, like = (torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    found = decomposable.rebalanced(1e6 * gradient, like)
    torch.testing.assert_close(found.norm(), like.norm())
    torch.testing.assert_close(found / found.norm(), gradient / gradient.norm())
    assert torch.equal(decomposable.rebalanced(torch.zeros(2), torch.ones(2)), torch.zeros(2))


@pytest.mark.parametrize("mode", MODES)
def test_between_decompositions_the_gradient_is_exactly_that_of_the_projection(mode):
    network, opts = net(dtype=torch.float64), options(mode=mode)
    course = decomposable.begin(network, opts)
    course.backward(from_labels(), batch_of(0, dtype=torch.float64))
    with torch.no_grad():
        for one in network.parameters():  # weights move on, bases do not
            one.add_(
                0.1 * torch.randn(one.shape, dtype=one.dtype, generator=torch.Generator().manual_seed(1))
            )
    for one in decomposable.cuts_of(task_of(course), 1):
        matrix = one.weight.matrix()
        basis = torch.linalg.svd(one.matrix).U[:, : torch.linalg.matrix_rank(one.matrix)]
        torch.testing.assert_close(one.matrix, basis @ basis.mT @ matrix, rtol=1e-8, atol=1e-10)
        gradient = torch.randn(matrix.shape, dtype=torch.float64)
        way = torch.randn(matrix.shape, dtype=torch.float64)
        torch.testing.assert_close(
            (one.pull_back(gradient) * way).sum(), (gradient * one.pull_back(way)).sum()
        )
        torch.testing.assert_close(one.matrix, one.pull_back(matrix))
    assert [one.matrix for one in decomposable.cuts_of(task_of(course), 3)]  # and anew in time
    kept = task_of(course).held.get_buffer("values0")
    torch.testing.assert_close(kept, torch.linalg.svdvals(task_of(course).weights[0].matrix()))


def test_the_low_rank_loss_may_be_of_fewer_images():
    network, opts = net(dtype=torch.float64), options(low_rank_images=0.5, low_rank_share=1.0)
    batch, seen = batch_of(dtype=torch.float64, count=11), []

    def watching(network, part):
        seen.append(len(part.images))
        assert len(part.images) == len(part.labels) == part.whole
        return from_labels()(network, part)

    decomposable.begin(network, opts).backward(watching, batch)
    assert seen == [11, 6]


def test_dropout_is_active_in_both_passes():
    network = net(dropout=0.5)
    masks = []
    network.dropout.register_forward_hook(lambda _, x, y: masks.append((y == 0) & (x[0] != 0)))
    decomposable.begin(network, options()).backward(from_labels(), batch_of())
    assert len(masks) == 2 and masks[0].any() and masks[1].any() and not torch.equal(*masks)


def test_weights_that_cannot_be_decomposed_make_an_ordinary_step():
    network = net()
    with torch.no_grad():
        network.conv1.weight[0, 0, 0, 0] = torch.nan
    passes = []
    course = decomposable.begin(network, options())
    course.backward(lambda n, b: passes.append(1) or from_labels()(n, b), batch_of())
    course.backward(lambda n, b: passes.append(1) or from_labels()(n, b), batch_of(1))
    assert len(passes) == 2  # one for each step


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"smallest": 0.0}, "shares above 0"),
        ({"smallest": 0.7}, "shares above 0"),
        ({"low_rank_share": 1.5}, "between 0 and 1"),
        ({"low_rank_images": 0.0}, "above 0"),
        ({"least_rank": 0}, "least rank 0"),
        ({"refresh": 0}, "refresh 0"),
    ],
)
def test_options_out_of_range_are_named(changed, said):
    with pytest.raises(ConfigError, match=said):
        decomposable.begin(net(), options(**changed))


# training


def settings(steps, **changed):
    told = {"lr": 0.05, "weight_decay": 1e-4, "nesterov": True, **changed}
    return TrainSettings(steps, parse_schedule("cosine"), optimiser_settings=OptimiserSettings(**told))


def trained(method, opts, steps, **more):
    course = method.begin(net(dropout=0.2), opts)
    return fit(course, from_labels(), training_images(), settings(steps), **more)


def same_weights(a, b):
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_without_the_low_rank_loss_it_is_ordinary_training_bit_for_bit():
    ordinary = trained(plain.METHOD, options(), 7).module
    assert same_weights(trained(decomposable.METHOD, options(low_rank_share=0.0), 7).module, ordinary)
    assert not same_weights(trained(decomposable.METHOD, options(), 7).module, ordinary)


class Vectors(Images):
    """Inputs whose class a linear map of high rank tells."""

    name, classes = "vectors", 10

    def __init__(self, count):
        generator = torch.Generator().manual_seed(3)
        self._images = torch.randn(count, 1, 4, 6, generator=generator)
        self._labels = (self._images.flatten(1) @ torch.randn(24, 10, generator=generator)).argmax(1)


def trained_on_vectors(method):
    torch.manual_seed(0)
    first, second = (nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU()), (nn.Linear(32, 24), nn.ReLU())
    network = nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(24, 10))
    images = TrainingImages(Split(Vectors(512), tuple(range(512)), "calibration"), 32, (), 0)
    course = method.METHOD.begin(network, options(smallest=0.1, largest=0.4, least_rank=1))
    return fit(course, from_labels(), images, settings(120, lr=0.1)).module


def loss_when_cut(network, share):
    network = copy.deepcopy(network).train()  # by statistics of the batch, as if norms had been renewed
    weights = matrix_weights(network, "channel")
    parts = [decompose(one.matrix()) for one in weights]
    ranks = global_ranks([one.values for one in parts], share, 1)
    with torch.no_grad():
        for one, part, rank in zip(weights, parts, ranks, strict=True):
            one.weight.copy_(one.values(cut(part, rank)))
        return float(F.cross_entropy(network(Vectors(512)._images), Vectors(512)._labels))


def test_a_trained_network_stands_being_cut():
    ours, ordinary = (trained_on_vectors(one) for one in (decomposable, plain))
    assert loss_when_cut(ours, 0.15) < 0.8 * loss_when_cut(ordinary, 0.15)
    assert loss_when_cut(ours, 0.2) < 0.8 * loss_when_cut(ordinary, 0.2)
    assert loss_when_cut(ours, 1.0) < 1.0  # of 2.3 at the start


class Killed(Exception):
    pass


def dying(at):
    def objective(network, batch):
        if batch.step == at:
            raise Killed
        return from_labels()(network, batch)

    return objective


@pytest.mark.parametrize("method", [decomposable, trp], ids=["decomposable", "trp"])
def test_a_killed_training_goes_on_between_two_decompositions(method, tmp_path):
    opts, file = options(refresh=5), tmp_path / "state.safetensors"
    images = training_images(48)  # three steps an epoch, so checkpoints are not at decompositions
    whole = fit(method.METHOD.begin(net(), opts), from_labels(), images, settings(12))
    with pytest.raises(Killed):
        fit(method.METHOD.begin(net(), opts), dying(8), images, settings(12), checkpoint=file)
    resumed = fit(
        method.METHOD.begin(net(seed=9), opts), from_labels(), images, settings(12), checkpoint=file
    )
    assert same_weights(resumed.module, whole.module)


def test_the_last_epoch_is_kept_whatever_the_full_network_scores():
    scores = iter([5.0, 4.0, 3.0, 2.0])
    fitted = fit(
        decomposable.begin(net(), options()),
        from_labels(),
        training_images(48),
        settings(9),
        judge=lambda network: next(scores),
    )
    assert not same_weights(fitted.module, net().eval())
    assert [row.score for row in fitted.rows] == [4.0, 3.0, 2.0]


def test_the_finished_network_is_an_ordinary_one():
    course = decomposable.begin(net(), options())
    finished = course.finish()
    assert type(finished) is Net and not finished.training
    assert finished.conv1.weight is not course.network.network.conv1.weight


def both_methods():
    """Trains by both methods, together with the other processes there are."""
    torch.set_num_threads(1)
    found = {}
    with parallel.process_group():
        for method in (decomposable, trp):
            course = method.METHOD.begin(net(), options(low_rank_images=0.6, nuclear=0.01))
            fitted = fit(course, from_labels(), training_images(batch=15), settings(5))
            found[method.METHOD.name] = fitted.module.state_dict()
    return found


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def test_two_processes_find_what_one_finds(monkeypatch):
    """The first of the two is this one."""
    alone, here = both_methods(), Path(__file__).parent
    for name, value in (("WORLD_SIZE", 2), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", free_port())):
        monkeypatch.setenv(name, str(value))
    env = os.environ | {"RANK": "1", "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    monkeypatch.setattr(parallel, "LONGEST_WAIT", timedelta(minutes=3))
    monkeypatch.setenv("RANK", "0")
    command = [sys.executable, "-c", "import test_decomposable as one; one.both_methods()"]
    with subprocess.Popen(command, env=env) as second:
        both = both_methods()
    assert second.returncode == 0
    for method, weights in alone.items():
        for name, value in weights.items():
            torch.testing.assert_close(both[method][name], value, rtol=1e-3, atol=1e-5)


# trained rank pruning


def test_energy_ranks_are_the_least_that_keep_enough():
    values = torch.tensor([3.0, 2.0, 1.0, 1e-6])  # squares 9, 4, 1
    assert [energy_rank(values, share) for share in (0.6, 0.65, 0.92, 0.93, 0.99, 1.0)] == [1, 2, 2, 3, 3, 4]
    assert energy_rank(torch.zeros(3), 0.9) == 1


def test_truncation_keeps_energy_and_tells_the_slope_of_the_sum_of_singular_values():
    network = net(dtype=torch.float64)
    (weight, *_) = matrix_weights(network, "channel")
    whole = weight.matrix().clone()
    (direction,) = trp.cut_to_energy_([weight], 0.8)
    values = torch.linalg.svdvals(whole)
    rank = energy_rank(values, 0.8)
    assert 1 <= rank < len(values)
    assert torch.linalg.matrix_rank(weight.matrix(), rtol=1e-9) == rank
    lost = (whole - weight.matrix()).square().sum() / whole.square().sum()
    assert lost <= 0.2 + 1e-12
    for step in (1e-6, -1e-6):  # of the kept values: scaling them changes their sum by that much
        moved = weight.matrix() * (1 + step)
        change = torch.linalg.svdvals(moved).sum() - values[:rank].sum()
        slope = (weight.matrix(direction) * weight.matrix() * step).sum()
        torch.testing.assert_close(change, slope, rtol=1e-5, atol=1e-12)


def test_rank_pruning_adds_its_penalty_and_ends_with_low_ranks():
    network, batch = net(dtype=torch.float64), batch_of(dtype=torch.float64)
    course = trp.begin(network, options(refresh=1, energy=0.9, nuclear=0.5))
    course.after_step(0)
    ordinary = copy.deepcopy(network)
    backward_once(ordinary, from_labels(), batch)
    course.backward(from_labels(), batch)
    for place, one in enumerate(matrix_weights(network, "channel")):
        more = one.weight.grad - ordinary.get_parameter(f"{one.layer}.weight").grad
        torch.testing.assert_close(more, 0.5 * course.network.get_buffer(f"direction{place}"))
    finished = course.finish()
    for before, after in zip(
        matrix_weights(net(), "channel"), matrix_weights(finished, "channel"), strict=True
    ):
        if before.max_rank > 4:
            assert torch.linalg.matrix_rank(after.matrix(), rtol=1e-6) < before.max_rank


def test_rank_pruning_learns_and_refuses_what_it_cannot_do():
    fitted = trained(trp.METHOD, options(energy=0.95, nuclear=1e-3), 60)
    assert fitted.rows[-1].loss < 0.8 < 1.2 < fitted.rows[0].loss
    for changed, said in (
        ({"energy": 0.0}, "energy 0"),
        ({"nuclear": -1.0}, "must be 0"),
        ({"refresh": 0}, "refresh"),
    ):
        with pytest.raises(ConfigError, match=said):
            trp.begin(net(), options(**changed))
