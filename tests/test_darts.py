"""DARTS-1, DARTS-2 and MiLeNAS on a model where their limits, and that they are wrong, are known."""

import pytest
import torch
from bilevel_problems import toy_inner, toy_outer
from torch import nn

from edgecompress.search.darts import Bilevel, architecture_gradient, darts_step, darts_step_


def number(x):
    return (torch.tensor(float(x), dtype=torch.float64),)


def limit(losses, *, size=0.05, steps=1000):
    w, alpha = number(-2), number(2)
    for _ in range(steps):
        w, alpha = darts_step(losses, w, alpha, w_size=size, alpha_size=size)
    return float(w[0]), float(alpha[0])


@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_without_look_ahead_the_toy_ends_at_two(share):
    assert limit(Bilevel(toy_outer, toy_inner, inner_share=share)) == pytest.approx((2, 2), abs=1e-6)


@pytest.mark.parametrize("lookahead", [0.1, 0.25, 0.5, 1.0])
def test_look_ahead_moves_the_limit_and_is_right_at_one_over_the_curvature(lookahead):
    expected = 2 / (1 + 2 * lookahead)
    found = limit(Bilevel(toy_outer, toy_inner, lookahead))
    assert found == pytest.approx((expected, expected), abs=1e-6)
    assert (abs(found[1] - 1) < 1e-6) == (lookahead == 0.5)


def test_the_finite_difference_is_the_second_derivative():
    torch.manual_seed(0)
    weights = (torch.randn(3, dtype=torch.float64), torch.randn(2, dtype=torch.float64))
    alpha = (torch.randn(2, dtype=torch.float64), torch.randn(1, dtype=torch.float64))

    def mixed(scale):
        def loss(own, arch):
            z, a = torch.cat(own), torch.cat(arch)
            return ((scale * z.sin()).outer(a.cos()) ** 2).sum() + (z * z).sum()

        return loss

    outer, inner, xi = mixed(1.0), mixed(0.7), 0.05
    leaves = [a.clone().requires_grad_() for a in alpha]
    own = [w.clone().requires_grad_() for w in weights]
    slopes = torch.autograd.grad(inner(own, leaves), own, create_graph=True)
    exact = torch.autograd.grad(outer([w - xi * s for w, s in zip(own, slopes, strict=True)], leaves), leaves)
    found = architecture_gradient(Bilevel(outer, inner, xi), weights, alpha)
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_an_outer_loss_that_ignores_the_weights_needs_no_correction():
    losses = Bilevel(lambda _, alpha: alpha[0] ** 2, toy_inner, 0.5)
    (found,) = architecture_gradient(losses, number(1), number(3))
    assert float(found) == pytest.approx(6)


@pytest.mark.parametrize("lookahead", [0.0, 0.3])
def test_optimisers_without_memory_step_like_the_plain_version(lookahead):
    losses = Bilevel(toy_outer, toy_inner, lookahead)
    w, alpha = number(-2), number(2)
    own, arch = (nn.Parameter(w[0].clone()),), (nn.Parameter(alpha[0].clone()),)
    optimisers = {
        "w_optimiser": torch.optim.SGD(list(own), lr=0.1),
        "alpha_optimiser": torch.optim.SGD(list(arch), lr=0.05),
    }
    for _ in range(5):
        w, alpha = darts_step(losses, w, alpha, w_size=0.1, alpha_size=0.05)
        darts_step_(losses, own, arch, **optimisers)
    assert (own[0].item(), arch[0].item()) == pytest.approx((float(w[0]), float(alpha[0])), abs=1e-12)
