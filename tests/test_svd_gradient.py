"""The gradient through a cut matrix: against autograd and differences, its bounds and its laws."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from edgecompress.train.svd_gradient import CLIP, Decomposition, cut, decompose, pull_back

SHAPES = ((7, 4, 2), (4, 7, 2), (5, 5, 3), (6, 4, 4), (3, 8, 3), (9, 2, 1))


def matrix_of(rows, columns, values, *, seed=0):
    """A matrix with these singular values in random directions."""
    generator = torch.Generator().manual_seed(seed)
    n = min(rows, columns)
    left, right = (
        torch.linalg.qr(torch.randn(side, n, dtype=torch.float64, generator=generator))[0]
        for side in (rows, columns)
    )
    return (left * torch.as_tensor(values, dtype=torch.float64)) @ right.mT


def spread(n):
    """Singular values no two of which are close: the clip stays out of it."""
    return [3.0 * 0.6**place for place in range(n)]


def some_gradient(rows, columns, *, seed=1):
    return torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_autograd(matrix, gradient, rank):
    whole = matrix.clone().requires_grad_(True)
    left, values, right = torch.linalg.svd(whole, full_matrices=False)
    kept = (left[:, :rank] * values[:rank]) @ right[:rank]
    return torch.autograd.grad((kept * gradient).sum(), whole)[0]


@pytest.mark.parametrize(("rows", "columns", "rank"), SHAPES)
def test_it_is_what_autograd_finds_through_the_decomposition(rows, columns, rank):
    matrix, gradient = matrix_of(rows, columns, spread(min(rows, columns))), some_gradient(rows, columns)
    found = pull_back(gradient, decompose(matrix), rank)
    torch.testing.assert_close(found, by_autograd(matrix, gradient, rank), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("rows", "columns", "rank"), SHAPES)
def test_it_is_what_small_differences_find(rows, columns, rank):
    matrix, gradient = matrix_of(rows, columns, spread(min(rows, columns))), some_gradient(rows, columns)
    found = pull_back(gradient, decompose(matrix), rank)
    for seed in range(3):
        way = some_gradient(rows, columns, seed=10 + seed)
        ends = [(cut(decompose(matrix + step * way), rank) * gradient).sum() for step in (1e-5, -1e-5)]
        slope = (ends[0] - ends[1]) / 2e-5
        torch.testing.assert_close((found * way).sum(), slope, rtol=1e-6, atol=1e-8)


@given(
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    seed=st.integers(0, 99),
    scale=st.floats(1e-3, 1e3),
    data=st.data(),
)
def test_tall_and_wide_are_one_and_scale_does_not_matter(rows, columns, seed, scale, data):
    rank = data.draw(st.integers(1, min(rows, columns)))
    matrix, gradient = some_gradient(rows, columns, seed=seed), some_gradient(rows, columns, seed=seed + 100)
    parts = decompose(matrix)
    found = pull_back(gradient, parts, rank)
    mirrored = pull_back(gradient.mT, Decomposition(parts.right, parts.values, parts.left), rank)
    torch.testing.assert_close(mirrored.mT, found)
    scaled = pull_back(gradient, decompose(scale * matrix), rank)
    torch.testing.assert_close(scaled, found, rtol=1e-6, atol=1e-8)


def test_full_rank_changes_nothing():
    for rows, columns in ((6, 4), (4, 6), (5, 5)):
        gradient = some_gradient(rows, columns)
        parts = decompose(matrix_of(rows, columns, spread(min(rows, columns))))
        torch.testing.assert_close(pull_back(gradient, parts, min(rows, columns)), gradient)


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-3])
def test_equal_values_on_both_sides_of_the_cut_give_a_bounded_gradient(gap):
    parts = decompose(matrix_of(6, 4, [2.0, 1.0, 1.0 - gap, 0.5]))
    gradient = some_gradient(6, 4)
    clipped = pull_back(gradient, parts, 2)
    assert clipped.isfinite().all()
    assert clipped.norm() <= gradient.norm() / (1 - CLIP)
    assert clipped.norm() > 5 * gradient.norm()  # the clip leaves the direction that matters the largest
    free = pull_back(gradient, parts, 2, clip=1 - 1e-14)
    assert free.norm() > 2 * clipped.norm()


def test_a_matrix_of_zeros_has_a_gradient_of_its_kept_part():
    found = pull_back(some_gradient(4, 3), decompose(torch.zeros(4, 3, dtype=torch.float64)), 1)
    assert found.isfinite().all()


def test_what_is_not_finite_is_not_decomposed():
    assert decompose(torch.tensor([[1.0, math.nan], [0.0, 1.0]])) is None


@given(inputs=st.integers(1, 8), outputs=st.integers(1, 8), seed=st.integers(0, 999))
def test_answers_come_nearer_with_every_rank(inputs, outputs, seed):
    """Proposition 1: of any input, and by exactly what the next singular vector sees of the answer."""
    weight, x = some_gradient(outputs, inputs, seed=seed), some_gradient(inputs, 1, seed=seed + 1)
    parts, y = decompose(weight), weight @ x
    errors = [(y - cut(parts, rank) @ x).square().sum() for rank in range(min(inputs, outputs) + 1)]
    gains = (parts.left.mT @ y).square().flatten()
    for rank, gain in enumerate(gains):
        torch.testing.assert_close(errors[rank] - errors[rank + 1], gain, rtol=1e-7, atol=1e-10)
        assert errors[rank + 1] <= errors[rank] + 1e-12
    assert errors[-1] < 1e-24


def relu_net(seed):
    torch.manual_seed(seed)
    sizes = torch.randint(2, 9, (4,)).tolist()
    layers = [nn.Linear(a, b, bias=False, dtype=torch.float64) for a, b in itertools.pairwise(sizes)]
    return layers, torch.randn(sizes[0], dtype=torch.float64)


def outputs_of(weights, x):
    """Outputs of all layers before their activation."""
    found = []
    for weight in weights:
        found.append(weight @ x)
        x = found[-1].relu()
    return found


def test_what_layers_lose_and_what_they_inherit_are_orthogonal():
    """The identity Proposition 2 rests on: W x - C x lies outside of what C can say of any other input."""
    for seed in range(20):
        layers, x = relu_net(seed)
        weight = layers[0].weight.detach()
        parts = decompose(weight)
        kept = cut(parts, 1)
        other = torch.randn_like(x)
        assert abs(float(((weight - kept) @ x) @ (kept @ (x - other)))) < 1e-12


def test_the_divergence_of_a_cut_network_is_bounded_by_what_its_layers_lose():
    """Proposition 2, on small networks with ReLU."""
    largest = 0.0
    for seed in range(100):
        layers, x = relu_net(seed)
        weights = [layer.weight.detach() * 2 for layer in layers]
        cuts = [cut(decompose(one), max(1, min(one.shape) // 2)) for one in weights]
        whole, low = outputs_of(weights, x)[-1], outputs_of(cuts, x)[-1]
        p, q = whole.log_softmax(0), low.log_softmax(0)
        divergence = float((p.exp() * (p - q)).sum())
        lost = [
            (weight - kept) @ (x if place == 0 else outputs_of(weights, x)[place - 1].relu())
            for place, (weight, kept) in enumerate(zip(weights, cuts, strict=True))
        ]
        total = 0.0
        for place, one in enumerate(lost):
            grown = math.prod(
                float(torch.linalg.matrix_norm(after, 2)) ** 2 for after in weights[place + 1 :]
            )
            total += float(one.square().sum()) * grown
        bound = math.sqrt(2 * total)
        assert divergence <= bound + 1e-12
        largest = max(largest, divergence / bound if bound > 0 else 0.0)
    assert largest > 0.01  # the networks are cut for good, so the bound is put to a test


def convolve(matrix, x, channels, kernel, stride):
    """What a convolution computes whose kernel is a matrix of outputs by inputs and places."""
    weight = matrix.reshape(-1, channels, kernel, kernel)
    return nn.functional.conv2d(x, weight, stride=stride, padding=kernel // 2)


def growth(matrix, kernel, stride):
    """How many times as long a convolution can make its input: every pixel is in so many windows."""
    return float(torch.linalg.matrix_norm(matrix, 2)) * math.ceil(kernel / stride)


@given(kernel=st.integers(1, 5), stride=st.integers(1, 3), seed=st.integers(0, 1000))
def test_a_convolution_lengthens_no_input_more_than_its_matrix_and_windows_allow(kernel, stride, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(3, 2 * kernel**2, dtype=torch.float64, generator=generator)
    everything = torch.eye(2 * 36, dtype=torch.float64).reshape(-1, 2, 6, 6)
    longest = torch.linalg.matrix_norm(convolve(matrix, everything, 2, kernel, stride).flatten(1), 2)
    assert float(longest) <= growth(matrix, kernel, stride) * (1 + 1e-12)


def test_the_divergence_of_cut_convolutions_is_bounded_by_what_they_lose():
    """Proposition 2 for convolutions, with a linear layer at the end."""
    largest = 0.0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        kernel, stride = 1 + seed % 3, 1 + seed // 3 % 2
        x = torch.randn(1, 2, 6, 6, dtype=torch.float64, generator=generator)
        first, second = (
            torch.randn(4, channels * kernel**2, dtype=torch.float64, generator=generator) * 0.4
            for channels in (2, 4)
        )
        middle = convolve(first, x, 2, kernel, stride).relu()
        features = convolve(second, middle, 4, kernel, stride).relu().flatten()
        last = torch.randn(5, len(features), dtype=torch.float64, generator=generator) * 0.1
        cuts = [cut(decompose(one), 2) for one in (first, second, last)]
        low = convolve(cuts[1], convolve(cuts[0], x, 2, kernel, stride).relu(), 4, kernel, stride).relu()
        p, q = (last @ features).log_softmax(0), (cuts[2] @ low.flatten()).log_softmax(0)
        divergence = float((p.exp() * (p - q)).sum())
        lost = (
            convolve(first - cuts[0], x, 2, kernel, stride),
            convolve(second - cuts[1], middle, 4, kernel, stride),
            (last - cuts[2]) @ features,
        )
        grown = float(torch.linalg.matrix_norm(last, 2)) ** 2
        factors = (growth(second, kernel, stride) ** 2 * grown, grown, 1.0)
        bound = math.sqrt(
            2 * sum(float(one.square().sum()) * f for one, f in zip(lost, factors, strict=True))
        )
        assert divergence <= bound + 1e-12
        largest = max(largest, divergence / bound)
    assert largest > 0.01


def test_gradients_of_a_network_at_cut_weights_are_pulled_back_to_whole_ones():
    layer = nn.Conv2d(3, 4, 3, dtype=torch.float64)
    images = torch.randn(2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rank = 2

    def loss_at(matrix):
        weight = {"weight": matrix.reshape(layer.weight.shape), "bias": layer.bias.detach()}
        return functional_call(layer, weight, (images,)).tanh().sum()

    whole = layer.weight.detach().flatten(1).clone()
    parts = decompose(whole)
    low = cut(parts, rank).requires_grad_(True)
    found = pull_back(torch.autograd.grad(loss_at(low), low)[0], parts, rank)
    for seed in range(3):
        way = some_gradient(*whole.shape, seed=seed)
        ends = [loss_at(cut(decompose(whole + step * way), rank)) for step in (1e-6, -1e-6)]
        torch.testing.assert_close(
            (found * way).sum(), (ends[0] - ends[1]).detach() / 2e-6, rtol=1e-4, atol=1e-6
        )
