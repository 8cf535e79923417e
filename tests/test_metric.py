"""The metric is that of real outputs, and factors that are best in it cannot be beaten."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import conv, kernel_of
from small_nets import images

from edgecompress.factors.patches import sample_patches
from edgecompress.methods.lowrank import pair_candidate, split
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.families import Family, families_of, fold, max_rank, pair_ops
from edgecompress.nets.metric import (
    INPUT_DAMPING,
    OUTPUT_DAMPING,
    PLAIN,
    LayerMetric,
    damped,
    diagonal_blocks,
    input_moment,
    kernel_error,
    whitener,
)

ALL = 10**9
LAYER = conv("layer", 4, 6, (3, 2), stride=2, size=9)


def correlated_rows(count, size, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.randn(count, size, generator=generator, dtype=torch.float64) @ mixing + 0.5


def moment_of(rows):
    return rows.T @ rows / len(rows)


def metric_of(layer):
    entries = layer.op.inputs * layer.op.kernel[0] * layer.op.kernel[1]
    return LayerMetric(
        moment_of(correlated_rows(500, entries)), moment_of(correlated_rows(500, layer.op.outputs, seed=1))
    )


def patches_of(layer, x=None):
    x = images(8, shape=(layer.op.inputs, 9, 9), dtype=torch.float64) if x is None else x
    return sample_patches(x, layer.op, ALL, 0)


def approximation_of(family, layer, kernel, rank, metric):
    left, right = split(family, kernel, layer.op, metric)
    block = pair_candidate(layer, family, rank).blocks[0]
    return equivalent_kernel(block, (fold(family, left[..., :rank], right[:, :rank], layer.op),))


def test_the_error_is_the_mean_squared_output_error_weighted_by_output():
    patches, pulls = patches_of(LAYER), correlated_rows(300, 6)
    kernel, other = kernel_of(LAYER), kernel_of(LAYER, seed=1)
    differences = patches @ (kernel - other).flatten(1).T  # of the outputs at every position
    metric = LayerMetric(moment_of(patches), moment_of(pulls))
    expected = (differences @ pulls.T).square().mean()
    assert kernel_error(kernel, other, metric) == pytest.approx(float(expected), rel=1e-10)


def test_without_moments_the_error_is_the_squared_norm():
    kernel, other = kernel_of(LAYER), kernel_of(LAYER, seed=1)
    expected = float((kernel - other).square().sum())
    eyes = LayerMetric(torch.eye(24, dtype=torch.float64), torch.eye(6, dtype=torch.float64))
    assert kernel_error(kernel, other, PLAIN) == pytest.approx(expected, rel=1e-12)
    assert kernel_error(kernel, other, eyes) == pytest.approx(expected, rel=1e-12)
    assert kernel_error(kernel, kernel, eyes) == 0


def test_large_kernels_are_measured_alike():
    layer = conv("large", 200, 200)
    kernel, other = kernel_of(layer), kernel_of(layer, seed=1)
    output = moment_of(correlated_rows(300, 200))
    expected = float(((kernel - other).flatten(1) * (output @ (kernel - other).flatten(1))).sum())
    assert kernel_error(kernel, other, LayerMetric(output=output)) == pytest.approx(expected, rel=1e-4)


@given(slices=st.sampled_from([1, 2, 4]), kernel=st.sampled_from([1, 2, 3]), stride=st.integers(1, 2))
def test_the_moment_of_a_first_layer_with_all_taps_is_that_of_its_own_patches(slices, kernel, stride):
    layer = conv("layer", 4, 6, kernel, stride=stride, size=9)
    first, _ = pair_ops(Family("S4", slices), layer.op, 1)
    patches = patches_of(layer)
    size = patches.shape[1] // slices
    own = torch.stack([moment_of(patches[:, g * size : (g + 1) * size]) for g in range(slices)])
    torch.testing.assert_close(input_moment(first, moment_of(patches), layer.op), own)


@given(stride=st.integers(1, 2), size=st.integers(5, 9))
def test_the_moment_of_a_pointwise_first_layer_is_exact(stride, size):
    layer = conv("point", 4, 6, 1, stride=stride, size=size)
    x = images(8, shape=(4, size, size), dtype=torch.float64)
    pixels = x[:, :, ::stride, ::stride].movedim(1, -1).reshape(-1, 4)
    first, _ = pair_ops(Family("S5"), layer.op, 1)
    found = input_moment(first, moment_of(patches_of(layer, x)), layer.op)
    torch.testing.assert_close(found, moment_of(pixels)[None])


@pytest.mark.parametrize("kind", ["S2", "S2T", "S5"])
def test_taps_a_first_layer_does_not_have_are_summed_over(kind):
    patches = patches_of(LAYER)
    taps = patches.reshape(-1, 4, 3, 2)
    parts = {
        "S2": [taps[:, :, i] for i in range(3)],
        "S2T": [taps[..., j] for j in range(2)],
        "S5": [taps[:, :, i, j] for i in range(3) for j in range(2)],
    }[kind]
    first, _ = pair_ops(Family(kind), LAYER.op, 1)
    expected = sum(moment_of(part.flatten(1)) for part in parts)
    torch.testing.assert_close(input_moment(first, moment_of(patches), LAYER.op), expected[None])


@pytest.mark.parametrize("kind", ["S2", "S2T", "S5"])
def test_what_is_white_to_the_layer_is_white_to_its_first_part(kind):
    first, _ = pair_ops(Family(kind), LAYER.op, 1)
    summed_taps = 6 // (first.kernel[0] * first.kernel[1])
    own_entries = 4 * first.kernel[0] * first.kernel[1]
    found = input_moment(first, torch.eye(24, dtype=torch.float64), LAYER.op)
    torch.testing.assert_close(found, summed_taps * torch.eye(own_entries, dtype=torch.float64)[None])


def test_damping_adds_a_share_of_the_mean_diagonal():
    moment = moment_of(correlated_rows(50, 5))
    added = damped(moment, 0.1) - moment
    torch.testing.assert_close(added, torch.eye(5, dtype=torch.float64) * 0.1 * moment.diagonal().mean())


@given(rows=st.integers(1, 6), size=st.integers(1, 6), scale=st.sampled_from([1e-12, 1.0, 1e12]))
def test_a_whitener_is_a_root_of_the_damped_moment_even_of_few_rows(rows, size, scale):
    moment = moment_of(correlated_rows(rows, size)) * scale
    white = whitener(torch.stack([moment, moment]), 1e-2)
    torch.testing.assert_close(white[1] @ white[1].T, damped(moment, 1e-2), rtol=1e-9, atol=1e-9 * scale)
    assert torch.equal(white, white.tril())


def test_a_moment_of_zeros_counts_no_direction_more():
    white = whitener(torch.zeros(1, 4, 4, dtype=torch.float64), 1e-4)
    torch.testing.assert_close(white / white[0, 0, 0], torch.eye(4, dtype=torch.float64)[None])


def test_diagonal_blocks_are_cut_from_the_diagonal():
    matrix = torch.arange(36.0).reshape(6, 6)
    assert torch.equal(
        diagonal_blocks(matrix, 3), torch.stack([matrix[i : i + 2, i : i + 2] for i in (0, 2, 4)])
    )


def families():
    return [family for family in families_of(LAYER.op) if max_rank(family, LAYER.op) > 1]


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_identity_moments_give_the_plain_decomposition(family):
    kernel = kernel_of(LAYER)
    eyes = LayerMetric(torch.eye(24, dtype=torch.float64), torch.eye(6, dtype=torch.float64))
    for rank in range(1, max_rank(family, LAYER.op) + 1):
        torch.testing.assert_close(
            approximation_of(family, LAYER, kernel, rank, eyes),
            approximation_of(family, LAYER, kernel, rank, PLAIN),
            rtol=1e-9,
            atol=1e-9,
        )


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_both_layers_get_the_same_share_of_each_singular_value(family):
    left, right = split(family, kernel_of(LAYER), LAYER.op, PLAIN)
    torch.testing.assert_close(left.square().sum(1), right.square().sum(2))


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_full_rank_reproduces_the_kernel_in_any_metric(family):
    kernel = kernel_of(LAYER)
    full = approximation_of(family, LAYER, kernel, max_rank(family, LAYER.op), metric_of(LAYER))
    torch.testing.assert_close(full, kernel, rtol=1e-8, atol=1e-8)


def channel_svd(rank):
    """Returns kernel, metric as the factors see it, and the best factors of S4(1)."""
    kernel, metric = kernel_of(LAYER), metric_of(LAYER)
    seen = LayerMetric(damped(metric.input, INPUT_DAMPING), damped(metric.output, OUTPUT_DAMPING))
    return kernel, seen, approximation_of(Family("S4"), LAYER, kernel, rank, metric)


@pytest.mark.parametrize("rank", range(1, 7))
def test_channel_factors_reach_the_bound_of_reduced_rank_regression(rank):
    kernel, seen, best = channel_svd(rank)
    roots = torch.linalg.cholesky(seen.output), torch.linalg.cholesky(seen.input)
    values = torch.linalg.svdvals(roots[0].T @ kernel.flatten(1) @ roots[1])
    bound, whole = float(values[rank:].square().sum()), float(values.square().sum())
    assert kernel_error(kernel, best, seen) == pytest.approx(bound, rel=1e-8, abs=1e-12 * whole)


@given(rank=st.integers(1, 5), seed=st.integers(0, 1000), step=st.sampled_from([1e-4, 1e-2, 1.0]))
def test_no_other_kernel_of_that_rank_is_better(rank, seed, step):
    kernel, seen, best = channel_svd(rank)
    u, s, vh = torch.linalg.svd(best.flatten(1), full_matrices=False)
    generator = torch.Generator().manual_seed(seed)
    left, right = u[:, :rank] * s[:rank].sqrt(), s[:rank].sqrt()[:, None] * vh[:rank]

    def moved(factor):
        return factor + step * torch.randn(factor.shape, generator=generator, dtype=torch.float64)

    other = (moved(left) @ moved(right)).reshape(kernel.shape)
    assert kernel_error(kernel, other, seen) >= kernel_error(kernel, best, seen) * (1 - 1e-9)
