"""RARTS: limits that are known on paper, descent within the step limits, and the order of updates."""

import dataclasses
import itertools
import math

import pytest
import torch
from bilevel_problems import (
    TOY_LIPSCHITZ,
    numbers,
    point,
    quadratic_search,
    squared_distance,
    toy,
    toy_limit,
    value,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgecompress.errors import ConfigError
from edgecompress.search.rarts import (
    Lagrangian,
    Optimisers,
    Point,
    StepSizes,
    decrease_limits,
    half_price_limits,
    half_price_step,
    half_price_step_,
    lagrangian_value,
    least_decrease,
    rarts_step,
    rarts_step_,
    soft_threshold,
    softmax_penalty,
    softmax_penalty_lipschitz,
    step_limits,
)

SCHEMES = {"full": (rarts_step, step_limits), "half price": (half_price_step, half_price_limits)}
IN_PLACE = {rarts_step: rarts_step_, half_price_step: half_price_step_}
EACH_SCHEME = pytest.mark.parametrize(("step", "limits"), SCHEMES.values(), ids=SCHEMES)
weights = st.floats(0, 5)


def scaled(sizes, factor):
    return StepSizes(factor * sizes.u, factor * sizes.w, factor * sizes.alpha)


def run(step, lagrangian, at, sizes, steps):
    for _ in range(steps):
        at = step(lagrangian, at, sizes)
    return at


def run_toy(step, limits, lam, beta, steps, factor=0.999):
    sizes = scaled(limits(TOY_LIPSCHITZ, lam, beta), factor)
    return run(step, toy(lam, beta), point(0, -2, 2), sizes, steps)


@EACH_SCHEME
@pytest.mark.parametrize(
    ("lam", "beta", "known"),
    [
        (10, 10, (0.918919, 1.027027, 1.081081)),
        (1, 2, (0, 1, 2)),
        (0.6, 3, (-0.4, 0.4, 2.4)),
    ],
)
def test_the_toy_ends_where_the_paper_says(step, limits, lam, beta, known):
    at = run_toy(step, limits, lam, beta, 1000)
    assert numbers(at) == pytest.approx(toy_limit(lam, beta)[:3], abs=1e-6)
    assert numbers(at) == pytest.approx(known, abs=1e-6)
    assert value(toy(lam, beta), at) == pytest.approx(toy_limit(lam, beta)[3], abs=1e-6)


def test_the_toy_takes_as_many_steps_as_its_conditioning_says():
    at = run(rarts_step, toy(10, 10), point(0, -2, 2), scaled(decrease_limits(4, 10, 10), 0.999), 564)
    assert 1e-6 < value(toy(10, 10), at) - toy_limit(10, 10)[3] < 2e-6


@pytest.mark.parametrize(("lam", "beta"), [(0.4, 1), (1, 0.5), (0.26, 10)])
def test_the_toy_diverges_where_its_lagrangian_has_no_minimum(lam, beta):
    assert 1 / lam + 2 / beta > 4
    at = run_toy(rarts_step, step_limits, lam, beta, 1500)
    assert max(map(abs, numbers(at))) > 1e3


@EACH_SCHEME
def test_the_error_on_the_toy_falls_with_the_two_weights(step, limits):
    errors = [run_toy(step, limits, k, k, 40 * k) for k in (10, 20, 40)]
    errors = [abs(numbers(at)[2] - 1) for at in errors]
    assert errors == sorted(errors, reverse=True)
    for k, error in zip((10, 20, 40), errors, strict=True):
        assert error == pytest.approx(1 / (4 * k) + 1 / (2 * k), rel=0.1)


@EACH_SCHEME
@given(seed=st.integers(0, 10**6), lam=weights, beta=weights, gamma=st.floats(0, 2))
@settings(max_examples=40)
def test_no_step_within_the_limits_raises_the_lagrangian(step, limits, seed, lam, beta, gamma):
    lagrangian, at = quadratic_search(seed, lam, beta, gamma)
    sizes = scaled(limits(1, lam, beta, gamma), 0.9999)
    sizes = dataclasses.replace(sizes, w=min(sizes.w, 1e3))  # infinite where nothing pulls at w
    before = value(lagrangian, at)
    for _ in range(40):
        at = step(lagrangian, at, sizes)
        after = value(lagrangian, at)
        assert after <= before + 1e-9 * max(1, abs(before))
        before = after


@given(seed=st.integers(0, 10**6), lam=weights, beta=weights, gamma=st.floats(0, 2))
@settings(max_examples=40)
def test_within_half_the_limits_the_fall_has_a_least_size(seed, lam, beta, gamma):
    lagrangian, at = quadratic_search(seed, lam, beta, gamma)
    sizes = scaled(decrease_limits(1, lam, beta, gamma), 0.9999)
    sizes = dataclasses.replace(sizes, w=min(sizes.w, 1e3))
    least = least_decrease(1, lam, beta, gamma)
    for _ in range(20):
        after = rarts_step(lagrangian, at, sizes)
        fall, change = value(lagrangian, at) - value(lagrangian, after), squared_distance(at, after)
        assert fall >= least * change - 1e-9 * max(1, abs(value(lagrangian, at)))
        at = after


@EACH_SCHEME
def test_twice_the_limits_are_too_much(step, limits):
    """Without this the tests above might hold for any step at all."""
    rises = 0
    for seed in range(30):
        lagrangian, at = quadratic_search(seed, 1.0, 4.0, 0.5)
        values = [value(lagrangian, at)]
        for _ in range(40):
            at = step(lagrangian, at, scaled(limits(1, 1.0, 4.0, 0.5), 2))
            values.append(value(lagrangian, at))
        rises += any(b > a + 1e-6 * max(1, abs(a)) for a, b in itertools.pairwise(values))
    assert rises > 0


@EACH_SCHEME
def test_what_is_reached_is_stationary(step, limits):
    lagrangian, at = quadratic_search(5, 1.5, 2.0, 0.5, convex=True)
    at = run(step, lagrangian, at, scaled(limits(1, 1.5, 2.0, 0.5), 0.99), 600)
    leaves = [t.requires_grad_() for t in (*at.u, *at.w, *at.alpha)]
    found = torch.autograd.grad(lagrangian_value(lagrangian, at), leaves)
    assert max(float(g.abs().max()) for g in found) < 1e-6


@dataclasses.dataclass
class Oracle:
    """Losses that note what they are asked."""

    asked: list = dataclasses.field(default_factory=list)

    def loss(self, name, inner):
        def call(own, alpha):
            self.asked.append((name, own[0].item(), alpha[0].item()))
            return inner(own, alpha)

        return call

    def watching(self, lagrangian):
        names = ("primary", "auxiliary")
        return dataclasses.replace(lagrangian, **{n: self.loss(n, getattr(lagrangian, n)) for n in names})


SIZES = StepSizes(u=0.05, w=0.02, alpha=0.03)


def test_each_update_sees_the_ones_before_it():
    oracle = Oracle()
    start = point(0.5, -2, 2)
    end = rarts_step(oracle.watching(toy(3, 2)), start, SIZES)
    (u, w, alpha), (new_u, new_w, _) = numbers(start), numbers(end)
    assert oracle.asked[:2] == [("auxiliary", w, alpha), ("primary", u, alpha)]
    assert sorted(oracle.asked[2:]) == [("auxiliary", new_w, alpha), ("primary", new_u, alpha)]


def test_the_steps_are_those_of_the_paper():
    lam, beta, (u, w, alpha) = 3, 2, (0.5, -2, 2)
    end = rarts_step(toy(lam, beta), point(u, w, alpha), SIZES)
    new_w = w - SIZES.w * (lam * 2 * (w - alpha) + beta * (w - u))
    new_u = u - SIZES.u * (alpha + beta * (u - new_w))
    new_alpha = alpha - SIZES.alpha * (lam * 2 * (alpha - new_w) + new_u - 2)
    assert numbers(end) == pytest.approx((new_u, new_w, new_alpha), abs=1e-12)
    cheap = half_price_step(toy(lam, beta), point(u, w, alpha), SIZES)
    cheap_alpha = alpha - SIZES.alpha * (lam * 2 * (alpha - w) + u - 2)
    assert numbers(cheap) == pytest.approx((new_u, new_w, cheap_alpha), abs=1e-12)


def test_half_the_price_is_two_passes():
    oracle = Oracle()
    half_price_step(oracle.watching(toy(3, 2)), point(0.5, -2, 2), SIZES)
    assert oracle.asked == [("auxiliary", -2, 2), ("primary", 0.5, 2)]


@EACH_SCHEME
def test_without_weights_it_is_joint_descent_on_the_primary_loss(step, limits):
    oracle = Oracle()
    at = step(oracle.watching(toy(0, 0)), point(0.5, -2, 2), SIZES)
    u = 0.5 - SIZES.u * 2
    seen_u = u if step is rarts_step else 0.5
    assert numbers(at) == pytest.approx((u, -2, 2 - SIZES.alpha * (seen_u - 2)), abs=1e-12)
    assert {name for name, *_ in oracle.asked} == {"primary"}


@EACH_SCHEME
def test_a_strong_coupling_makes_the_weights_one(step, limits):
    lagrangian, at = quadratic_search(8, 1.0, 1e4, 0.0, convex=True)
    assert float((at.u[0] - at.w[0]).abs().max()) > 0.2
    at = run(step, lagrangian, at, scaled(limits(1, 1.0, 1e4), 0.9), 300)
    assert float((at.u[0] - at.w[0]).abs().max()) < 0.01


def sparse_search(gamma, **extra):
    """Only the first of eight architecture parameters earns its price."""
    pull = torch.tensor([1.0] + [0.01] * 7, dtype=torch.float64)

    def loss(own, alpha):
        return ((alpha[0] - pull) ** 2).sum() / 4 + (own[0] ** 2).sum() / 2

    start = [(torch.ones(8, dtype=torch.float64),) for _ in range(3)]
    l1 = Lagrangian(loss, loss, 1.0, 1.0, gamma, lambda alpha: alpha[0].abs().sum(), **extra)
    return l1, Point(*start)


@EACH_SCHEME
def test_the_prox_gives_exact_zeros_where_the_gradient_does_not(step, limits):
    sizes = scaled(limits(1, 1.0, 1.0), 0.3)
    ends = {}
    for name, extra in {"prox": {"prox": soft_threshold}, "gradient": {}}.items():
        lagrangian, at = sparse_search(0.1, **extra)
        before = value(lagrangian, at)
        for _ in range(200):
            at = step(lagrangian, at, sizes)
            assert name != "prox" or value(lagrangian, at) <= before + 1e-12
            before = value(lagrangian, at)
        ends[name] = at.alpha[0]
    assert int((ends["prox"] == 0).sum()) == 7
    assert int((ends["gradient"] == 0).sum()) == 0
    assert float(ends["prox"][0]) == pytest.approx(0.9, abs=1e-6)


@given(x=st.floats(-5, 5), threshold=st.floats(0, 3))
def test_soft_threshold_is_the_least_of_what_it_minimises(x, threshold):
    found = float(soft_threshold(torch.tensor(x, dtype=torch.float64), threshold))
    grid = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    least = ((grid - x) ** 2 / 2 + threshold * grid.abs()).min()
    assert (found - x) ** 2 / 2 + threshold * abs(found) <= float(least) + 1e-12
    assert (found == 0) == (abs(x) <= threshold)


@EACH_SCHEME
@pytest.mark.parametrize("prox", [None, soft_threshold])
def test_optimisers_without_memory_step_like_the_plain_version(step, limits, prox):
    lagrangian, start = quadratic_search(3, 1.2, 0.7, 0.4)
    lagrangian = dataclasses.replace(lagrangian, prox=prox)
    trained = Point(
        *(tuple(nn.Parameter(t.clone()) for t in part) for part in (start.u, start.w, start.alpha))
    )
    optimisers = Optimisers(
        *(
            torch.optim.SGD(list(part), lr=size)
            for part, size in ((trained.u, SIZES.u), (trained.w, SIZES.w), (trained.alpha, SIZES.alpha))
        )
    )
    at = start
    for _ in range(5):
        at = step(lagrangian, at, SIZES)
        IN_PLACE[step](lagrangian, trained, optimisers)
    assert squared_distance(at, trained) < 1e-24
    assert all(p.grad is None for p in (*trained.u, *trained.w, *trained.alpha))


def test_losses_may_close_over_modules_that_share_the_architecture():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(2)]
    theta = nn.Parameter(torch.zeros(3))
    x, target = torch.randn(16, 4), torch.randn(16, 3)
    losses = [lambda _, __, net=net: ((net(x) * theta.sigmoid() - target) ** 2).mean() for net in nets]
    at = Point(*(tuple(net.parameters()) for net in nets), (theta,))
    optimisers = Optimisers(*(torch.optim.Adam(list(part), lr=0.05) for part in (at.u, at.w, at.alpha)))
    lagrangian = Lagrangian(*losses, lam=1.0, beta=1.0)
    before = value(lagrangian, at)
    for _ in range(30):
        half_price_step_(lagrangian, at, optimisers)
    assert value(lagrangian, at) < before
    assert not torch.equal(nets[0][1].running_mean, nets[1][1].running_mean)
    assert bool((theta != 0).all())


def test_frozen_parameters_and_negative_weights_are_refused():
    with pytest.raises(ConfigError, match=r"beta=-1.*must not be negative"):
        toy(1, -1)
    frozen = Point(*((torch.zeros(()),) for _ in range(3)))
    optimisers = Optimisers(*(torch.optim.SGD(part, lr=1) for part in (frozen.u, frozen.w, frozen.alpha)))
    with pytest.raises(ConfigError, match="frozen"):
        rarts_step_(toy(1, 1), frozen, optimisers)


def noise_floor(step, size, count=1500):
    """Returns how far above its least value the Lagrangian settles with noisy gradients, per search.

    `count` searches of three numbers run side by side, each with noise of its own.
    """
    g = torch.Generator().manual_seed(0)

    def noisy(target, scale):
        def loss(own, alpha):
            own_noise, alpha_noise = scale * torch.randn(2, count, generator=g, dtype=torch.float64)
            clean = (own[0] - alpha[0] - target) ** 2 + alpha[0] ** 2
            return (clean / 2 + own_noise * own[0] + alpha_noise * alpha[0]).sum()

        return loss

    clean, rough = (Lagrangian(noisy(1, scale), noisy(-2, scale), 1.0, 1.0) for scale in (0.0, 1.0))
    at = Point(*((torch.zeros(count, dtype=torch.float64),) for _ in range(3)))
    steps, sizes = round(15 / size), StepSizes(size, size, size)
    least = value(clean, run(step, clean, at, sizes, steps))
    return (value(clean, run(step, rough, at, sizes, steps)) - least) / count


@EACH_SCHEME
def test_noise_leaves_a_gap_that_is_in_proportion_to_the_step(step, limits):
    gaps = [noise_floor(step, size) for size in (0.1, 0.05, 0.025)]
    assert min(gaps) > 0
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.15)
    assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.15)


rows = st.lists(st.floats(0, 10), min_size=2, max_size=6)


@given(costs=rows, seed=st.integers(0, 10**6))
def test_the_gradient_of_the_expected_cost_is_probability_times_excess(costs, seed):
    c = torch.tensor(costs, dtype=torch.float64)
    alpha = torch.randn(len(c), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    leaf = alpha.clone().requires_grad_()
    (found,) = torch.autograd.grad(softmax_penalty((leaf,), (c,)), leaf)
    p = alpha.softmax(0)
    torch.testing.assert_close(found, p * (c - (p * c).sum()))
    (flat,) = torch.autograd.grad(softmax_penalty((leaf,), (torch.full_like(c, 3.0),)), leaf)
    assert float(flat.abs().max()) < 1e-12


@given(costs=rows, seed=st.integers(0, 10**6))
def test_the_curvature_of_the_expected_cost_is_bounded(costs, seed):
    c = torch.tensor([costs, costs[::-1]], dtype=torch.float64)
    alpha = 3 * torch.randn(c.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda a: softmax_penalty((a,), (c,)), alpha)
    curvature = float(torch.linalg.matrix_norm(hessian.reshape(c.numel(), c.numel()), 2))
    assert curvature <= softmax_penalty_lipschitz((c,)) + 1e-12


def test_two_options_attain_the_bound_of_the_curvature():
    c = torch.tensor([0.0, 1.0], dtype=torch.float64)
    gap = math.log(2 + math.sqrt(3))  # where the third derivative of the sigmoid vanishes
    at = torch.tensor([0.0, gap], dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda a: softmax_penalty((a,), (c,)), at)
    assert float(torch.linalg.matrix_norm(hessian, 2)) == pytest.approx(1 / (3 * math.sqrt(3)), abs=1e-9)


def probability_after(cost_of_first):
    """Three options that the losses like equally well; the penalty decides."""
    costs = torch.tensor([cost_of_first, 1.0, 1.0], dtype=torch.float64)

    def loss(own, alpha):
        return (own[0] ** 2).sum() + 0.1 * (alpha[0] ** 2).sum()

    lagrangian = Lagrangian(loss, loss, 1.0, 1.0, 1.0, lambda alpha: softmax_penalty(alpha, (costs,)))
    start = Point(*((torch.zeros(3, dtype=torch.float64),) for _ in range(3)))
    at = run(rarts_step, lagrangian, start, StepSizes(0.2, 0.2, 0.2), 100)
    return float(at.alpha[0].softmax(0)[0])


def test_a_dearer_option_ends_less_likely():
    found = [probability_after(cost) for cost in (0.5, 1.0, 2.0, 3.0)]
    assert found == sorted(found, reverse=True)
    assert found[1] == pytest.approx(1 / 3)
