"""The laws of the low-rank families: what a truncation computes, what it loses and what it costs."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import conv, kernel_of, linear

from edgecompress.core.costs import block_params, chain_macs, op_macs
from edgecompress.core.types import Block
from edgecompress.errors import ConfigError, UnsupportedLayer
from edgecompress.methods.lowrank import pair_candidate, split
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.families import (
    Family,
    families_of,
    family_named,
    fold,
    matrix_shape,
    max_rank,
    pair_ops,
    saving_rank,
    to_kernel,
    to_matrices,
    unfold,
)
from edgecompress.nets.metric import PLAIN, kernel_error

KERNELS = st.sampled_from([1, 2, 3, (1, 3), (3, 2), (5, 1)])


@st.composite
def cases(draw):
    """Draws a convolution and one of its families; even, odd, unit and full slicings all occur."""
    inputs, outputs = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    layer = conv("layer", inputs, outputs, draw(KERNELS), stride=draw(st.sampled_from([1, 2])), size=7)
    kind = draw(st.sampled_from(["S2", "S2T", "S4", "S5"]))
    sliced = {"S4": inputs, "S5": outputs}.get(kind, 1)
    slices = draw(st.sampled_from([g for g in range(1, sliced + 1) if sliced % g == 0]))
    return layer, Family(kind, slices)


def truncated(family, layer, weight, rank):
    """Returns the kernels of the two layers at a rank."""
    left, right = split(family, weight, layer.op, PLAIN)
    return fold(family, left[..., :rank], right[:, :rank], layer.op)


def approximation(family, layer, weight, rank):
    block = pair_candidate(layer, family, rank).blocks[0]
    return equivalent_kernel(block, (truncated(family, layer, weight, rank),))


def run(op, weight, x):
    return F.conv2d(x, weight, None, op.stride, op.padding, op.dilation, op.groups)


@given(case=cases(), data=st.data())
def test_two_layers_compute_what_the_truncated_kernel_does(case, data):
    layer, family = case
    rank = data.draw(st.integers(1, max_rank(family, layer.op)))
    weight = kernel_of(layer)
    x = torch.randn(1, layer.op.inputs, *layer.in_size, dtype=torch.float64)
    first, second = pair_ops(family, layer.op, rank)
    kernels = truncated(family, layer, weight, rank)
    left, right = split(family, weight, layer.op, PLAIN)
    whole = to_kernel(family, left[..., :rank] @ right[:, :rank], layer.op)  # without any layer
    expected = run(layer.op, whole, x)
    assert (run(second, kernels[1], run(first, kernels[0], x)) - expected).abs().max() < 1e-12


@given(case=cases())
def test_full_rank_reproduces_the_kernel(case):
    layer, family = case
    weight = kernel_of(layer)
    full = approximation(family, layer, weight, max_rank(family, layer.op))
    assert (full - weight).abs().max() < 1e-12


@given(case=cases())
def test_the_error_is_the_discarded_energy_and_falls_with_the_rank(case):
    layer, family = case
    weight = kernel_of(layer)
    energies = torch.linalg.svdvals(to_matrices(family, weight)).square().sum(0)
    ranks = range(1, max_rank(family, layer.op) + 1)
    errors = [kernel_error(weight, approximation(family, layer, weight, rank), PLAIN) for rank in ranks]
    expected = [float(energies[rank:].sum()) for rank in ranks]
    assert errors == pytest.approx(expected, rel=1e-9, abs=1e-12 * float(energies.sum()))
    assert all(later <= earlier + 1e-14 for earlier, later in itertools.pairwise(errors))


@given(case=cases(), data=st.data())
def test_folding_and_unfolding_are_inverse(case, data):
    layer, family = case
    slices, rows, columns = matrix_shape(family, layer.op)
    rank = data.draw(st.integers(1, max_rank(family, layer.op)))
    left, right = torch.randn(slices, rows, rank), torch.randn(slices, rank, columns)
    again = unfold(family, *fold(family, left, right, layer.op), layer.op)
    assert torch.equal(again[0], left)
    assert torch.equal(again[1], right)


@given(case=cases())
def test_matrices_hold_every_weight_once(case):
    layer, family = case
    weight = kernel_of(layer)
    matrices = to_matrices(family, weight)
    assert matrices.shape == matrix_shape(family, layer.op)
    assert torch.equal(to_kernel(family, matrices, layer.op), weight)


@given(case=cases(), data=st.data())
def test_costs_follow_the_published_formulas(case, data):
    """r (rows x output positions + columns x input positions), the strides as each family has them."""
    layer, family = case
    op = layer.op
    rank = data.draw(st.integers(1, max_rank(family, op)))
    f, c, (kh, kw), g = op.outputs, op.inputs, op.kernel, family.slices
    in_h, in_w = layer.in_size
    h, w = (
        (n + 2 * p - k) // s + 1
        for n, p, k, s in zip((in_h, in_w), op.padding, op.kernel, op.stride, strict=True)
    )
    macs = {
        "S2": h * w * f * kh + in_h * w * c * kw,
        "S2T": h * w * f * kw + h * in_w * c * kh,
        "S4": h * w * (g * f + c * kh * kw),
        "S5": h * w * f * kh * kw + in_h * in_w * g * c,
    }
    params = {
        "S2": f * kh + c * kw,
        "S2T": f * kw + c * kh,
        "S4": g * f + c * kh * kw,
        "S5": g * c + f * kh * kw,
    }
    candidate = pair_candidate(layer, family, rank)
    assert candidate.macs == rank * macs[family.kind]
    assert candidate.params == rank * params[family.kind]


@given(case=cases())
def test_the_saving_rank_is_the_last_that_saves(case):
    layer, family = case
    rank, dense = saving_rank(family, layer), op_macs(layer.op, layer.in_size)
    assert 0 <= rank <= max_rank(family, layer.op)
    assert chain_macs(pair_ops(family, layer.op, rank + 1), layer.in_size) >= dense
    assert rank == 0 or chain_macs(pair_ops(family, layer.op, rank), layer.in_size) < dense


@given(inputs=st.integers(2, 24), outputs=st.integers(2, 24))
def test_a_pointwise_layer_has_one_family_of_each_set_of_twins(inputs, outputs):
    names = [family.name for family in families_of(conv("point", inputs, outputs, 1).op)]
    assert names.count("S4(1)") <= 1
    assert not {"S2", "S2T", "S5(1)"} & set(names)
    twins = [
        approximation(Family(kind), *point_and_kernel(inputs, outputs), 1) for kind in ("S2", "S4", "S5")
    ]
    torch.testing.assert_close(twins[0], twins[1])
    torch.testing.assert_close(twins[0], twins[2])


def point_and_kernel(inputs, outputs):
    layer = conv("point", inputs, outputs, 1)
    return layer, kernel_of(layer)


@given(case=cases())
def test_every_family_can_save_and_no_two_build_the_same_layers(case):
    layer, _ = case
    found = families_of(layer.op)
    pairs = [pair_ops(family, layer.op, 1) for family in found]
    assert len(set(pairs)) == len(pairs)
    assert all(pair_candidate(layer, family, 1).params < layer_params(layer) for family in found)


def layer_params(layer):
    return block_params(Block(branches=((layer.op,),)))


def test_a_linear_layer_has_one_family():
    assert families_of(linear("head", 8, 9).op) == (Family("S4"),)


@given(case=cases())
def test_names_are_read_back(case):
    _, family = case
    assert family_named(family.name) == family


@pytest.mark.parametrize("name", ["", "S3", "S4", "S4()", "S4(0)", "S4(-1)", "S2(2)", "s2"])
def test_other_names_are_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"known are: S2, S2T, S4\(g\), S5\(g\)"):
        family_named(name)


def test_a_grouped_convolution_is_refused():
    with pytest.raises(UnsupportedLayer, match="groups=4"):
        families_of(conv("grouped", 8, 8, groups=4).op)
