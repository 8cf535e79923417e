"""PUGD, SAM and ASAM held to their formulas."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import batch, closure_of, hessian, moves, normed_net, quadratic, start, step, vector
from torch import nn

import edgecompress
from edgecompress.train.optimisers.asam import ASAM, ETA
from edgecompress.train.optimisers.pugd import PUGDRTS
from edgecompress.train.optimisers.sam import SAM
from edgecompress.train.radius_schedules import const

seeds = st.integers(0, 10_000)
KINDS = pytest.mark.parametrize("kind", [PUGDRTS, SAM, ASAM])


# Lengths


@given(seed=seeds, lr=st.floats(1e-3, 1), radius=st.floats(0, 4), scale=st.floats(0, 4))
@settings(deadline=None, max_examples=25)
def test_a_step_is_as_long_as_the_learning_rate(seed, lr, radius, scale):
    net = normed_net(seed=seed)
    optimizer = PUGDRTS(net.parameters(), lr=lr, radius=const(radius), scale=const(scale))
    (move,) = moves(net, optimizer)
    assert float(move.norm()) == pytest.approx(lr, rel=1e-12, abs=1e-12)


@given(seed=seeds, radius=st.floats(0.01, 4))
@settings(deadline=None, max_examples=25)
def test_the_second_pass_is_one_radius_away(seed, radius):
    net, calls = normed_net(seed=seed), []
    optimizer = PUGDRTS(net.parameters(), lr=0.1, radius=const(radius))
    step(net, optimizer, calls=calls)
    first, second = map(vector, calls)
    assert float((second - first).norm()) == pytest.approx(radius, rel=1e-12)


def test_with_momentum_steps_stay_within_the_sum_of_a_geometric_series():
    net = normed_net()
    lengths = [float(move.norm()) for move in moves(net, PUGDRTS(net.parameters(), lr=0.1, momentum=0.9), 12)]
    assert max(lengths) <= 0.1 / (1 - 0.9)
    assert max(lengths) > 0.1


@given(seed=seeds, exponent=st.integers(-8, 8))
@settings(deadline=None, max_examples=15)
def test_the_step_does_not_depend_on_the_scale_of_the_loss(seed, exponent):
    found = []
    for factor in (1.0, 2.0**exponent, 10.0**exponent):
        net = normed_net(seed=seed)
        found += moves(net, PUGDRTS(net.parameters(), lr=0.1), factor=factor)
    assert torch.equal(found[0], found[1])  # powers of two are exact
    torch.testing.assert_close(found[2], found[0], rtol=1e-8, atol=1e-12)


# Formulas


@given(seed=seeds, radius=st.floats(0, 3), scale=st.floats(0, 3))
@settings(deadline=None, max_examples=25)
def test_on_a_quadratic_the_step_is_the_closed_form(seed, radius, scale):
    matrix, weight = hessian(5, seed=seed), start(seed)
    w = weight.detach().clone()
    optimizer = PUGDRTS([weight], lr=0.1, radius=const(radius), scale=const(scale))
    loss = optimizer.step(quadratic(matrix, weight, optimizer))

    g = matrix @ w
    perturbation = radius * w.abs() * g / (w.abs() * g).norm()
    total = matrix @ (w + perturbation) + scale * g
    torch.testing.assert_close(weight.detach(), w - 0.1 * total / total.norm())
    torch.testing.assert_close(loss, w @ g / 2)  # that of the first pass


@given(seed=seeds)
@settings(deadline=None, max_examples=15)
def test_sam_and_asam_follow_their_formulas(seed):
    matrix = hessian(6, seed=seed)
    w = start(seed, 6).detach().view(2, 3)
    g = (matrix @ w.flatten()).view(2, 3)
    sizes = w.abs() + ETA
    perturbations = {SAM: 0.3 * g / g.norm(), ASAM: 0.3 * sizes**2 * g / (sizes * g).norm()}
    for kind, perturbation in perturbations.items():
        weight = nn.Parameter(w.clone())
        optimizer = kind([weight], lr=0.1, radius=const(0.3))
        optimizer.step(of_matrix(matrix, weight, optimizer))
        expected = w - 0.1 * (matrix @ (w + perturbation).flatten()).view(2, 3)
        torch.testing.assert_close(weight.detach(), expected)


def of_matrix(matrix, weight, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = weight.flatten() @ matrix @ weight.flatten() / 2
        loss.backward()
        return loss.detach()

    return closure


def test_asam_takes_biases_as_they_are():
    matrix, weight = hessian(5), start(1)
    w = weight.detach().clone()
    optimizer, calls = ASAM([weight], lr=0.1, radius=const(0.3)), []
    optimizer.step(quadratic(matrix, weight, optimizer, calls))
    g = matrix @ w
    torch.testing.assert_close(calls[1] - w, 0.3 * g / g.norm())


def test_without_scale_the_step_is_that_of_the_perturbed_gradient_alone():
    matrix, weight, calls = hessian(5), start(3), []
    w = weight.detach().clone()
    optimizer = PUGDRTS([weight], lr=0.1, scale=const(0))
    optimizer.step(quadratic(matrix, weight, optimizer, calls))
    perturbed = matrix @ calls[1]
    torch.testing.assert_close(weight.detach(), w - 0.1 * perturbed / perturbed.norm())


def test_without_radius_it_is_normalised_descent():
    net = normed_net()
    plain = copy.deepcopy(net)
    (move,) = moves(net, PUGDRTS(net.parameters(), lr=0.1, radius=const(0)))
    closure_of(plain, torch.optim.SGD(plain.parameters()), batch(seed=0))()
    gradient = vector([one.grad for one in plain.parameters()])
    torch.testing.assert_close(move, -0.1 * gradient / gradient.norm())


def test_weight_decay_is_added_to_the_unit_step():
    matrix, w = hessian(5), start(4).detach()
    found = []
    for decay in (0.0, 0.01):
        weight = nn.Parameter(w.clone())
        optimizer = PUGDRTS([weight], lr=0.1, weight_decay=decay)
        optimizer.step(quadratic(matrix, weight, optimizer))
        found.append(weight.detach())
    torch.testing.assert_close(found[1], found[0] - 0.1 * 0.01 * w)


def test_decoupled_decay_does_not_go_through_momentum():
    matrix, weight = hessian(5), start(4)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, "decoupled_decay": True}
    optimizer = PUGDRTS([weight], **options)
    expected, buffer = weight.detach().clone(), torch.zeros(5, dtype=torch.float64)
    for _ in range(4):
        g = matrix @ expected
        perturbation = expected.abs() * g / (expected.abs() * g).norm()
        total = g + matrix @ (expected + perturbation)
        buffer = 0.9 * buffer + total / total.norm()
        expected = (1 - 0.1 * 0.05) * expected - 0.1 * buffer
        optimizer.step(quadratic(matrix, weight, optimizer))
    torch.testing.assert_close(weight.detach(), expected)
    assert optimizer.param_groups[0]["weight_decay"] == 0.05


def test_two_groups_do_what_one_does():
    one, two = normed_net(), normed_net()
    parameters = list(two.parameters())
    groups = [{"params": parameters[:3]}, {"params": parameters[3:]}]
    moves(one, PUGDRTS(one.parameters(), lr=0.1, momentum=0.9), 4)
    moves(two, PUGDRTS(groups, lr=0.1, momentum=0.9), 4)
    assert torch.equal(vector(one.parameters()), vector(two.parameters()))


@KINDS
def test_any_base_optimiser_will_do(kind):
    net = normed_net()
    optimizer = kind(net.parameters(), torch.optim.AdamW, lr=0.01)
    losses = [float(step(net, optimizer)) for _ in range(8)]
    assert losses[-1] < losses[0]
    assert "exp_avg" in optimizer.state[next(net.parameters())]


def test_the_package_hands_it_out():
    assert edgecompress.PUGDRTS is PUGDRTS
