"""Variational Bayes finds how many directions of a matrix are signal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import conv, problem_of

from edgecompress.errors import ConfigError
from edgecompress.search.ranks import vbmf


def matrix(rows, columns, rank, *, noise, seed=0):
    """Returns a matrix of that rank, every singular value twice the edge of the noise, plus the noise."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(rows, rank))).Q
    right = np.linalg.qr(rng.normal(size=(columns, rank))).Q
    edge = np.sqrt(rows) + np.sqrt(columns)
    return 2 * edge * left @ right.T + noise * rng.normal(size=(rows, columns))


def rank_found(a):
    return vbmf.signal_rank(np.linalg.svd(a, compute_uv=False), longer=max(a.shape))


@pytest.mark.parametrize("shape", [(60, 60), (40, 150), (150, 40), (64, 576)])
@pytest.mark.parametrize("rank", [1, 5, 12])
def test_a_planted_rank_is_recovered(shape, rank):
    assert rank_found(matrix(*shape, rank, noise=1.0)) == rank


@pytest.mark.parametrize("seed", range(5))
def test_pure_noise_has_no_signal(seed):
    assert rank_found(np.random.default_rng(seed).normal(size=(64, 200))) == 0


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_the_noise_is_measured(noise):
    values = np.linalg.svd(matrix(80, 200, 6, noise=noise), compute_uv=False)
    assert vbmf.noise_variance(values, longer=200) == pytest.approx(noise**2, rel=0.05)


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 20))
def test_scale_and_orientation_do_not_matter(scale, seed):
    a = matrix(20, 50, 3, noise=1.0, seed=seed)
    assert rank_found(a) == rank_found(scale * a) == rank_found(a.T)


def test_the_noise_variance_is_the_global_minimum():
    values = np.linalg.svd(matrix(30, 90, 4, noise=0.7), compute_uv=False)
    best = vbmf.noise_variance(values, longer=90)
    low, high = vbmf._variance_bounds(values, 90)
    energies = vbmf._free_energy(np.array([best, *np.geomspace(low, high, 20_000)]), values, 90)
    assert energies[0] <= energies.min() + 1e-3


@pytest.mark.parametrize("shape", [(30, 90), (50, 50)])
def test_the_noise_is_what_the_shrunken_signal_leaves_over(shape):
    """The stationary point in the form the estimator of the matrix itself gives."""
    shorter, longer = shape
    values = np.linalg.svd(matrix(*shape, 4, noise=0.7), compute_uv=False)
    variance = vbmf.noise_variance(values, longer=longer)
    kept = values[: vbmf.signal_rank(values, longer=longer)]
    ratio = 1 - (shorter + longer) * variance / kept**2
    shrunken = kept / 2 * (ratio + np.sqrt(ratio**2 - 4 * shorter * longer * variance**2 / kept**4))
    left_over = ((values**2).sum() - (kept * shrunken).sum()) / (shorter * longer)
    assert variance == pytest.approx(left_over, rel=1e-4)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 0.5, 1.0])
def test_the_threshold_is_where_a_direction_starts_to_pay(alpha):
    edge = (1 + np.sqrt(alpha)) ** 2  # of the noise's own singular values
    assert edge < vbmf._x_min(alpha)
    t = 2.5129 * np.sqrt(alpha)  # the approximation the literature gives, exact for alpha = 1
    assert vbmf._x_min(alpha) == pytest.approx((1 + t) * (1 + alpha / t), rel=0.05 if alpha < 1 else 1e-4)


def test_a_matrix_without_noise_keeps_its_rank():
    assert rank_found(matrix(20, 40, 5, noise=0.0)) >= 5
    assert rank_found(np.zeros((4, 7))) == 0
    assert rank_found(np.ones((1, 1))) in (0, 1)


@given(knobs=st.tuples(st.floats(0, 2), st.floats(0, 2)), found=st.integers(1, 9), full=st.integers(9, 20))
def test_ranks_rise_with_the_knob_from_one_over_those_found_to_full(knobs, found, full):
    ranks = vbmf.Ranks(conv("layer", 20, 20), (found, found), (full, full))
    assert ranks.at(min(knobs)) <= ranks.at(max(knobs))
    assert (ranks.at(0), ranks.at(1), ranks.at(2)) == ((1, 1), (found, found), (full, full))


def test_without_tucker_candidates_the_user_is_told_what_to_pass():
    with pytest.raises(ConfigError, match="--methods tucker2"):
        vbmf.SELECTION.select(problem_of(share=0.8))
