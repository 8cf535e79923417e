"""What optimisers with two passes leave behind, skip, follow and remember."""

import math

import pytest
import torch
from made_steps import (
    batch,
    closure_of,
    moves,
    normed_net,
    step,
    vector,
    weights_of,
)
from torch import nn

from edgecompress.errors import ConfigError
from edgecompress.train.checkpoint import load_state, save_state
from edgecompress.train.optimisers.asam import ASAM
from edgecompress.train.optimisers.pugd import PUGDRTS
from edgecompress.train.optimisers.sam import SAM
from edgecompress.train.perturbation import has_direction
from edgecompress.train.radius_schedules import const, parse_radius
from edgecompress.train.timing import parse_timing

KINDS = pytest.mark.parametrize("kind", [PUGDRTS, SAM, ASAM])


# What passes leave behind


@KINDS
def test_batch_norms_keep_the_statistics_of_the_first_pass(kind):
    net, once = normed_net(), normed_net()
    step(net, kind(net.parameters(), lr=0.1, radius=const(1), bn_modules=[net]))
    once(batch()[0])
    for (name, found), (_, expected) in zip(net.named_buffers(), once.named_buffers(), strict=True):
        assert torch.equal(found, expected), name
    assert int(net[1].num_batches_tracked) == 1


def test_batch_norms_follow_both_passes_when_asked():
    net, once = normed_net(), normed_net()
    step(net, PUGDRTS(net.parameters(), lr=0.1, bn_modules=[net], bn_second_pass="update"))
    once(batch()[0])
    assert int(net[1].num_batches_tracked) == 2
    assert not torch.equal(net[1].running_mean, once[1].running_mean)


def test_the_second_pass_uses_statistics_of_its_batch():
    seen = []
    for modules in (True, False):
        net = normed_net()
        net[1].register_forward_hook(lambda norm, given, out: seen.append(out.detach()))
        step(net, PUGDRTS(net.parameters(), lr=0.1, bn_modules=[net] if modules else []))
    assert torch.equal(seen[1], seen[3])


def test_norms_that_are_frozen_stay_frozen():
    net = normed_net()
    net[1].eval()
    before = {name: value.clone() for name, value in net.named_buffers()}
    step(net, PUGDRTS(net.parameters(), lr=0.1, bn_modules=[net]))
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())


@KINDS
def test_a_pass_that_fails_leaves_weights_and_statistics_behind_as_they_were(kind):
    net = normed_net()
    optimizer = kind(net.parameters(), lr=0.1, radius=const(1), bn_modules=[net])
    before, calls = weights_of(net), []

    def fails():
        loss = closure_of(net, optimizer, calls=calls)()
        if len(calls) == 2:
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(fails)
    assert all(torch.equal(one, before[name]) for name, one in net.named_parameters())
    assert int(net[1].num_batches_tracked) == 1


@pytest.mark.parametrize("same", [True, False])
def test_dropout_is_drawn_again_unless_asked_otherwise(same):
    net, masks = normed_net(dropout=0.5), []
    net[4].register_forward_hook(lambda module, given, out: masks.append(out == 0))
    optimizer = PUGDRTS(net.parameters(), lr=0.1, radius=const(0.0), same_randomness=same)
    torch.manual_seed(0)
    step(net, optimizer)
    after = torch.rand(1)
    assert torch.equal(masks[0], masks[1]) is same
    torch.manual_seed(0)
    net(batch()[0])
    assert torch.equal(torch.rand(1), after) is same  # chance goes on as after one pass


def test_chance_goes_on_from_the_first_pass_however_much_the_second_draws():
    net, drawn = normed_net(), iter([2, 5])
    optimizer = PUGDRTS(net.parameters(), lr=0.1, same_randomness=True)
    torch.manual_seed(0)
    step(net, optimizer, times=lambda: 1 + torch.rand(next(drawn)).mean())
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.rand(2)
    assert torch.equal(torch.rand(1), after)


def test_layers_that_chance_leaves_out_do_no_harm():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    used = iter([first, second])
    parameters = [*first.parameters(), *second.parameters()]
    before = vector(second.parameters())
    optimizer = PUGDRTS(parameters, lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = next(used)(torch.ones(2, 3)).square().sum()
        loss.backward()
        return loss.detach()

    optimizer.step(closure)
    assert torch.equal(vector(second.parameters()), before)
    assert torch.isfinite(vector(first.parameters())).all()


# No direction


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_makes_no_step(kind, value):
    net = normed_net()
    optimizer = kind(net.parameters(), lr=0.1, momentum=0.9)
    before = vector(net.parameters())
    step(net, optimizer, factor=value)
    assert torch.equal(vector(net.parameters()), before)
    assert optimizer.skipped == {"steps": 1, "perturbations": 0}
    step(net, optimizer)
    assert not torch.equal(vector(net.parameters()), before)


def test_nor_does_it_before_a_trigger_has_fired():
    net = normed_net()
    optimizer = PUGDRTS(net.parameters(), lr=0.1, timing=parse_timing("variance"))
    before = vector(net.parameters())
    step(net, optimizer, factor=math.nan)
    assert torch.equal(vector(net.parameters()), before)
    assert (optimizer.skipped["steps"], optimizer.timing.recent) == (1, [])


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_second_gradient_that_is_not_finite_makes_no_step(kind, value):
    net = normed_net()
    optimizer = kind(net.parameters(), lr=0.1)
    before, factors = vector(net.parameters()), iter([1.0, value])
    step(net, optimizer, times=lambda: next(factors))
    assert torch.equal(vector(net.parameters()), before)
    assert optimizer.skipped["steps"] == 1


@pytest.mark.parametrize("norm", [0.0, 1e-13, math.inf, math.nan])
def test_nothing_without_a_direction_is_divided_by_its_norm(norm):
    assert not has_direction(norm)
    assert has_direction(1e-12)


def test_no_gradient_is_no_step():
    net = normed_net()
    optimizer = PUGDRTS(net.parameters(), lr=0.1, weight_decay=0.1)
    before, calls = vector(net.parameters()), []
    step(net, optimizer, factor=0.0, calls=calls)
    assert torch.equal(vector(net.parameters()), before)
    assert (len(calls), optimizer.skipped["steps"]) == (1, 1)


def test_weights_of_nothing_are_not_perturbed_but_move():
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer, calls = PUGDRTS([weight], lr=0.1), []

    def closure():
        optimizer.zero_grad()
        loss = (weight - torch.tensor([1.0, 2.0, 2.0])).square().sum()
        loss.backward()
        calls.append(1)
        return loss.detach()

    optimizer.step(closure)
    torch.testing.assert_close(weight.detach(), 0.1 * torch.tensor([1, 2, 2], dtype=torch.float64) / 3)
    assert (len(calls), optimizer.skipped) == (1, {"steps": 0, "perturbations": 1})


# Use like any other optimiser


def test_schedulers_of_the_learning_rate_work():
    net = normed_net()
    optimizer = PUGDRTS(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    lengths = []
    for _ in range(3):
        lengths += [float(move.norm()) for move in moves(net, optimizer)]
        scheduler.step()
    assert lengths == pytest.approx([0.1, 0.05, 0.025], rel=1e-9)


def test_groups_that_come_later_are_trained():
    net, late = normed_net(), nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = PUGDRTS(net.parameters(), lr=0.1)
    optimizer.add_param_group({"params": [late], "lr": 0.0})
    assert optimizer.base.param_groups is optimizer.param_groups
    assert optimizer.param_groups[-1]["lr"] == 0.0


OPTIONS = [
    {"momentum": 0.9, "weight_decay": 1e-3, "nesterov": True},
    {"momentum": 0.9, "perturb_every": 3},
    {"momentum": 0.9, "radius": "cos:1.5:0.5", "timing": "gap", "rescale_momentum_on_switch": True},
    {"momentum": 0.9, "radius": "cos:1.5:0.5", "timing": "at:0.4", "clock": "since_trigger"},
    {"momentum": 0.9, "timing": "variance"},
]


def trained(optimizer, net, steps, *, epochs=8, per_epoch=5):
    for number in steps:
        epoch, within = divmod(number, per_epoch)
        if within == 0:
            optimizer.set_progress(epoch, epochs)
        step(net, optimizer, data=batch(seed=number, dtype=torch.float32))
        if within == per_epoch - 1:
            optimizer.observe_epoch(1.0, 1.0 + 0.1 * 2**epoch)


def made(net, options):
    read = {"radius": parse_radius, "timing": parse_timing}
    known = {name: read[name](value) if name in read else value for name, value in options.items()}
    return PUGDRTS(net.parameters(), lr=0.1, bn_modules=[net], **known)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("stop", [3, 13, 27])
def test_a_training_goes_on_from_its_file_as_if_nothing_had_happened(options, stop, tmp_path):
    whole, half, rest = (normed_net(dtype=torch.float32) for _ in range(3))
    trained(straight := made(whole, options), whole, range(32))
    trained(first := made(half, options), half, range(stop))
    save_state(tmp_path / "state", {"net": half.state_dict(), "optimiser": first.state_dict()}, "test")
    loaded = load_state(tmp_path / "state", "test")
    rest.load_state_dict(loaded["net"])
    second = made(rest, options)
    second.load_state_dict(loaded["optimiser"])
    assert second.base.param_groups is second.param_groups
    trained(second, rest, range(stop, 32))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, rest.state_dict()[name]), name
    assert (straight.active, straight.skipped) == (second.active, second.skipped)


def test_the_state_of_another_optimiser_is_refused():
    net = normed_net()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="another"):
        PUGDRTS(net.parameters(), lr=0.1).load_state_dict(plain.state_dict())
    timed = PUGDRTS(net.parameters(), lr=0.1, timing=parse_timing("gap"))
    with pytest.raises(ConfigError, match="timing"):
        PUGDRTS(net.parameters(), lr=0.1).load_state_dict(timed.state_dict())


def test_a_step_without_a_closure_says_so():
    with pytest.raises(ConfigError, match="closure"):
        PUGDRTS(normed_net().parameters(), lr=0.1).step()


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = PUGDRTS(table.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = table(torch.tensor([1])).sum()
        loss.backward()
        return loss.detach()

    with pytest.raises(ConfigError, match="sparse"):
        optimizer.step(closure)


def test_perturbing_less_often_than_every_step_needs_a_number():
    with pytest.raises(ConfigError, match="perturb_every"):
        PUGDRTS(normed_net().parameters(), lr=0.1, perturb_every=0)
