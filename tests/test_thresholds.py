"""Proximal maps are minimisers, and relaxed splitting finds sparse solutions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgecompress.errors import ConfigError
from edgecompress.search.thresholds import (
    group_hard_threshold,
    group_soft_threshold,
    hard_threshold,
    rvsm_step,
    soft_threshold,
    transformed_l1,
    transformed_l1_threshold,
)

GRID = torch.linspace(-4, 4, 80_001, dtype=torch.float64)
A = 0.7
MAPS = {
    "hard": (hard_threshold, lambda y: (y != 0).double()),
    "soft": (soft_threshold, torch.abs),
    "transformed l1": (lambda x, t: transformed_l1_threshold(x, t, A), lambda y: transformed_l1(y, A)),
}
EVERY_MAP = pytest.mark.parametrize(("prox", "penalty"), MAPS.values(), ids=MAPS)
numbers = st.floats(-3, 3).map(lambda x: torch.tensor([x], dtype=torch.float64))
thresholds = st.floats(0.01, 2)
ROWS = {
    "soft": (group_soft_threshold, lambda length: length),
    "hard": (group_hard_threshold, lambda length: (length > 0).double()),
}


def objective(penalty, threshold, x, y):
    return (y - x) ** 2 / 2 + threshold * penalty(y)


@EVERY_MAP
@given(x=numbers, threshold=thresholds)
def test_no_point_of_a_fine_grid_is_better(prox, penalty, x, threshold):
    found = prox(x, threshold)
    best = objective(penalty, threshold, x, GRID).min()
    assert float(objective(penalty, threshold, x, found)) <= float(best) + 1e-12


@EVERY_MAP
@given(x=numbers, threshold=thresholds)
def test_signs_are_kept_and_nothing_grows(prox, penalty, x, threshold):
    found = prox(x, threshold)
    assert float(found * x) >= 0 and float(found.abs()) <= float(x.abs()) + 1e-12
    torch.testing.assert_close(prox(-x, threshold), -found)


@pytest.mark.parametrize(("prox", "penalty"), ROWS.values(), ids=ROWS)
@given(seed=st.integers(0, 999), threshold=thresholds)
def test_rows_are_scaled_by_the_best_factor(prox, penalty, seed, threshold):
    x = torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = prox(x, threshold)
    shares = torch.linspace(0, 1.5, 15_001, dtype=torch.float64)
    for row, own in zip(x, found, strict=True):
        length = row.norm()
        torch.testing.assert_close(own, row * (own.norm() / length))  # a multiple of what it was
        best = objective(penalty, threshold, length, shares * length).min()
        assert float(objective(penalty, threshold, length, own.norm())) <= float(best) + 1e-12


def test_ties_at_the_edge_become_zero():
    edge = torch.tensor([2.0, -2.0], dtype=torch.float64)  # sqrt(2 * 2)
    assert hard_threshold(edge, 2.0).tolist() == [0, 0]
    assert hard_threshold(edge * (1 + 1e-9), 2.0).abs().min() > 2
    assert group_hard_threshold(edge[:, None], 2.0).abs().sum() == 0
    assert soft_threshold(edge, 2.0).tolist() == [0, 0]
    assert group_soft_threshold(torch.zeros(2, 3), 0.0).tolist() == torch.zeros(2, 3).tolist()


@given(seed=st.integers(0, 999), threshold=thresholds)
def test_convex_maps_bring_no_two_points_further_apart(seed, threshold):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator)
    for prox in (soft_threshold, group_soft_threshold):
        assert torch.dist(prox(x, threshold), prox(y, threshold)) <= torch.dist(x, y) + 1e-12


@given(x=numbers, threshold=thresholds)
def test_the_hard_map_has_nothing_left_to_do(x, threshold):
    once = hard_threshold(x, threshold)
    assert torch.equal(hard_threshold(once, threshold), once)


def test_a_large_a_is_the_soft_map():
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    found = transformed_l1_threshold(x, 0.4, 1e6)
    torch.testing.assert_close(found, soft_threshold(x, 0.4), atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match=r"a=0\.0"):
        transformed_l1_threshold(x, 0.4, 0.0)


def quadratic(target):
    return lambda w, _: ((w[0] - target) ** 2).sum() / 2


def test_relaxed_splitting_ends_where_its_lagrangian_is_stationary():
    target = torch.tensor([2.0, 0.3, -1.5, 0.01], dtype=torch.float64)
    weights, partners = (torch.zeros(4, dtype=torch.float64),), ()
    for _ in range(400):
        weights, partners = rvsm_step(
            quadratic(target), weights, prox=hard_threshold, size=0.1, penalty=0.1, coupling=0.5
        )
    w, u = weights[0], partners[0]
    torch.testing.assert_close(
        w - target + 0.5 * (w - u), torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0
    )
    torch.testing.assert_close(u, hard_threshold(w, 0.2), atol=1e-9, rtol=0)
    assert (u == 0).tolist() == [False, True, False, True]
    assert abs(float(w[1])) == pytest.approx(0.2) and math.sqrt(0.4) < abs(float(w[2]))


def test_the_partners_come_first_and_both_forces_pull():
    target = torch.tensor([3.0], dtype=torch.float64)
    start = (torch.tensor([1.0], dtype=torch.float64),)
    (w,), (u,) = rvsm_step(quadratic(target), start, prox=soft_threshold, size=0.1, penalty=1.0, coupling=2.0)
    assert float(u) == pytest.approx(0.5)
    assert float(w) == pytest.approx(1 - 0.1 * ((1 - 3) + 2 * (1 - 0.5)))
    with pytest.raises(ConfigError, match="coupling=0"):
        rvsm_step(quadratic(target), start, prox=soft_threshold, size=0.1, penalty=1.0, coupling=0)
