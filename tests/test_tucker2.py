"""Tucker-2: one decomposition, every pair of ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import conv, kernel_of, linear

from edgecompress.methods import tucker2
from edgecompress.methods.tucker2 import tucker_candidate
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.metric import PLAIN, LayerMetric, kernel_error

channels = st.integers(1, 12)
kernels = st.sampled_from([2, 3, (1, 3), (5, 1)])


def approximation(layer, kernel, ranks, metric=PLAIN):
    candidate = tucker_candidate(layer, *ranks)
    return equivalent_kernel(candidate.blocks[0], tucker2.factorise(kernel, layer, metric)(candidate))


def some_metric(layer):
    generator = torch.Generator().manual_seed(1)

    def moment(size):
        samples = torch.randn(3 * size, size, generator=generator, dtype=torch.float64).cumsum(1)
        return samples.T @ samples / len(samples)

    taps = layer.op.kernel[0] * layer.op.kernel[1]
    return LayerMetric(moment(layer.op.inputs * taps), moment(layer.op.outputs))


@given(inputs=channels, outputs=channels, kernel=kernels, stride=st.sampled_from([1, 2]), aware=st.booleans())
def test_full_rank_changes_nothing(inputs, outputs, kernel, stride, aware):
    layer = conv("layer", inputs, outputs, kernel, stride=stride)
    weight = kernel_of(layer)
    metric = some_metric(layer) if aware else PLAIN
    full = approximation(layer, weight, tucker2.max_ranks(layer.op), metric)
    torch.testing.assert_close(full, weight, rtol=1e-9, atol=1e-9)


@given(inputs=channels, outputs=channels, kernel=kernels, data=st.data())
def test_the_error_lies_between_the_larger_and_the_sum_of_the_discarded_energies(
    inputs, outputs, kernel, data
):
    layer = conv("layer", inputs, outputs, kernel)
    weight, most = kernel_of(layer), tucker2.max_ranks(layer.op)
    r1, r2 = (data.draw(st.integers(1, r)) for r in most)
    discarded_in = torch.linalg.svdvals(weight.transpose(0, 1).flatten(1))[r1:].square().sum()
    discarded_out = torch.linalg.svdvals(weight.flatten(1))[r2:].square().sum()
    error = kernel_error(weight, approximation(layer, weight, (r1, r2)), PLAIN)
    slack = 1e-10 * float(weight.square().sum())
    assert max(discarded_in, discarded_out) - slack <= error <= discarded_in + discarded_out + slack


def test_the_three_layers_sit_where_they_should():
    layer = conv("layer", 6, 10, (3, 5), stride=2, dilation=(1, 2), bias=True)
    first, core, last = tucker_candidate(layer, 4, 5).blocks[0].branches[0]
    assert (first.inputs, first.outputs, first.kernel, first.stride, first.bias) == (
        6,
        4,
        (1, 1),
        (1, 1),
        False,
    )
    assert core == layer.op.model_copy(update={"inputs": 4, "outputs": 5, "bias": False})
    assert (last.inputs, last.outputs, last.kernel, last.stride, last.bias) == (5, 10, (1, 1), (1, 1), True)


@pytest.mark.parametrize(
    "layer", [conv("point", 8, 8, 1), linear("head", 8, 8)], ids=lambda layer: layer.name
)
def test_nothing_is_offered_where_there_are_no_taps(layer):
    assert list(tucker2.candidates(layer)) == []


@given(inputs=st.integers(8, 600), outputs=st.integers(8, 600))
def test_the_grid_is_small_and_starts_at_few_ranks(inputs, outputs):
    found = list(tucker2.candidates(conv("layer", inputs, outputs)))
    assert 8 <= len(found) <= 81
    first, second = zip(*(candidate.ranks for candidate in found), strict=True)
    assert min(first) <= -(-inputs // 8) + 3
    assert min(second) <= -(-outputs // 8) + 3


@given(channels=st.integers(4, 600))
def test_the_grid_of_a_square_layer_reaches_all_ranks_of_either_mode(channels):
    found = list(tucker2.candidates(conv("layer", channels, channels)))
    assert {max(mode) for mode in zip(*(c.ranks for c in found), strict=True)} == {channels}


def test_a_metric_that_ignores_a_channel_leaves_it_out():
    layer = conv("layer", 4, 6)
    weight = kernel_of(layer)
    scale = torch.tensor([1.0, 1.0, 1.0, 1e-6], dtype=torch.float64).repeat_interleave(9)
    metric = LayerMetric(input=torch.diag(scale))
    kept = approximation(layer, weight, (3, 6), metric)
    torch.testing.assert_close(kept[:, :3], weight[:, :3], rtol=1e-2, atol=1e-3)
