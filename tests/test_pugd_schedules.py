"""Radius, timing and scale of PUGD over the epochs of a training, and perturbations that are reused."""

import math

import pytest
import torch
from made_steps import closure_of, hessian, normed_net, quadratic, start, step, vector

from edgecompress.errors import ConfigError
from edgecompress.train.optimisers.pugd import PUGDRTS
from edgecompress.train.radius_schedules import parse_radius
from edgecompress.train.timing import parse_timing


def test_the_radius_follows_its_schedule_from_end_to_end():
    net, lengths = normed_net(), []
    optimizer = PUGDRTS(net.parameters(), lr=0.01, radius=parse_radius("cos:1.5:0.5"))
    for epoch in range(5):
        optimizer.set_progress(epoch, 5)
        calls = []
        step(net, optimizer, calls=calls)
        lengths.append(float((vector(calls[1]) - vector(calls[0])).norm()))
    expected = [0.5 + math.cos(math.pi * epoch / 8) for epoch in range(5)]
    assert lengths == pytest.approx(expected, rel=1e-9)
    assert (lengths[0], lengths[-1]) == pytest.approx((1.5, 0.5), rel=1e-9)


def test_the_scale_follows_its_schedule():
    optimizer = PUGDRTS(normed_net().parameters(), lr=0.1, scale=parse_radius("sin:0:2"))
    scales = []
    for epoch in (0, 1, 2):
        optimizer.set_progress(epoch, 3)
        scales.append(optimizer.scale_now)
    assert scales == pytest.approx([0.0, math.sqrt(2), 2.0])


def test_a_schedule_that_is_never_told_where_training_is_says_so():
    net = normed_net()
    with pytest.raises(ConfigError, match="set_progress"):
        step(net, PUGDRTS(net.parameters(), lr=0.1, radius=parse_radius("cos:1.5:0.5")))


def test_a_radius_beyond_the_limit_is_cut_off_and_told_once():
    net, calls = normed_net(), []
    optimizer = PUGDRTS(net.parameters(), lr=0.1, radius=parse_radius("icos:2:0.01"))
    optimizer.set_progress(9, 10)
    with pytest.warns(UserWarning, match=r"radius 100 is cut off at 5") as told:
        step(net, optimizer, calls=calls)
        step(net, optimizer)
    assert len(told) == 1
    assert float((vector(calls[1]) - vector(calls[0])).norm()) == pytest.approx(5)


def train(optimizer, net, epochs, *, steps=2):
    """Runs epochs whose gap grows and returns how often each called the closure."""
    counts = []
    for epoch in range(epochs):
        optimizer.set_progress(epoch, epochs)
        calls = []
        for _ in range(steps):
            step(net, optimizer, calls=calls)
        optimizer.observe_epoch(1.0, 1.0 + 0.1 * 2**epoch)
        counts.append(len(calls))
    return counts


def test_closures_are_called_once_before_the_trigger_fires_and_twice_after():
    net = normed_net()
    optimizer = PUGDRTS(net.parameters(), lr=0.1, timing=parse_timing("gap"))
    assert train(optimizer, net, 6) == [2, 2, 2, 4, 4, 4]


def test_before_the_trigger_fires_steps_are_those_of_the_base_optimiser():
    net, plain = normed_net(), normed_net()
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
    optimizer = PUGDRTS(net.parameters(), timing=parse_timing("variance"), **options)
    sgd = torch.optim.SGD(plain.parameters(), **options)
    for _ in range(4):
        step(net, optimizer)
        step(plain, sgd)
    assert torch.equal(vector(net.parameters()), vector(plain.parameters()))


def test_the_variance_trigger_sees_norms_of_raw_gradients():
    net = normed_net()
    optimizer = PUGDRTS(net.parameters(), lr=0.1, timing=parse_timing("variance"))
    optimizer.set_progress(0, 10)
    step(net, optimizer)
    gradient = vector([one.grad for one in net.parameters()])
    assert optimizer.timing.recent == [pytest.approx(float(gradient.norm()), rel=1e-12)]


@pytest.mark.parametrize(
    ("clock", "shares"),
    [("global", [4 / 7, 5 / 7, 6 / 7, 1.0]), ("since_trigger", [0.0, 1 / 3, 2 / 3, 1.0])],
)
def test_the_clock_starts_with_training_or_with_the_trigger(clock, shares):
    net = normed_net()
    radius = parse_radius("sin:0:2")
    optimizer = PUGDRTS(net.parameters(), lr=0.1, radius=radius, timing=parse_timing("at:0.5"), clock=clock)
    found = []
    for epoch in range(8):
        optimizer.set_progress(epoch, 8)
        step(net, optimizer)
        found += [optimizer.radius_now] if optimizer.active else []
        optimizer.observe_epoch(1.0, None)
    assert found == pytest.approx([radius(share) for share in shares])


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
def test_momentum_can_be_rescaled_when_the_trigger_fires(base):
    options = {"lr": 0.0} | ({"momentum": 0.9} if base is torch.optim.SGD else {})
    found = []
    for rescale in (False, True):
        net = normed_net()
        optimizer = PUGDRTS(
            net.parameters(),
            base,
            timing=parse_timing("at:0.5"),
            rescale_momentum_on_switch=rescale,
            **options,
        )
        train(optimizer, net, 2, steps=1)
        found.append(optimizer.state_dict()["state"][0])
    raw = normed_net()
    closure_of(raw, torch.optim.SGD(raw.parameters()))()
    size = float(vector([one.grad for one in raw.parameters()]).norm())
    name, share = ("momentum_buffer", 1.0) if base is torch.optim.SGD else ("exp_avg", 0.1)
    kept = 0.9 * share * next(raw.parameters()).grad  # of the one step before
    torch.testing.assert_close(found[0][name] - found[1][name], kept * (1 - 1 / size))
    if base is torch.optim.Adam:
        squares = 0.999 * 0.001 * next(raw.parameters()).grad.square()
        difference = found[0]["exp_avg_sq"] - found[1]["exp_avg_sq"]
        torch.testing.assert_close(difference, squares * (1 - 1 / size**2))


def test_observing_without_progress_says_so():
    optimizer = PUGDRTS(normed_net().parameters(), lr=0.1, timing=parse_timing("gap"))
    with pytest.raises(ConfigError, match="set_progress"):
        optimizer.observe_epoch(1.0, 2.0)


@pytest.mark.parametrize(("epoch", "epochs"), [(-1, 3), (0, 0)])
def test_progress_that_cannot_be_is_refused(epoch, epochs):
    with pytest.raises(ConfigError, match="set_progress"):
        PUGDRTS(normed_net().parameters(), lr=0.1).set_progress(epoch, epochs)


def test_reused_perturbations_save_passes_and_follow_the_formula():
    matrix, weight = hessian(5), start(2)
    optimizer, calls = PUGDRTS([weight], lr=0.1, perturb_every=3), []
    expected, pull = weight.detach().clone(), None
    for number in range(7):
        g = matrix @ expected
        if number % 3 == 0:
            pull = matrix @ (expected.abs() * g / (expected.abs() * g).norm())
        total = 2 * g + pull
        expected = expected - 0.1 * total / total.norm()
        optimizer.step(quadratic(matrix, weight, optimizer, calls))
        torch.testing.assert_close(weight.detach(), expected)
    assert len(calls) == 7 + 3
