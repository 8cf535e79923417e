"""Patches are those the layer multiplies, at positions that depend on the seed alone."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import conv, linear

from edgecompress.core.types import Op
from edgecompress.factors.patches import MIN_PATCHES, PATCHES_PER_ENTRY, patches_per_image, sample_patches
from edgecompress.nets.modules import module_of

ALL = 10**9
pair = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def convolutions(draw):
    return Op(
        kind="conv2d",
        inputs=draw(st.integers(1, 3)),
        outputs=2,
        kernel=draw(pair),
        stride=draw(pair),
        padding=draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        dilation=draw(pair),
    )


def unfolded(x, op):
    """Returns every patch, image by image."""
    patches = F.unfold(x, op.kernel, op.dilation, op.padding, op.stride)
    return patches.transpose(1, 2).reshape(-1, patches.shape[1])


@given(op=convolutions(), images=st.integers(1, 3), seed=st.integers(0, 9))
def test_all_positions_are_an_unfolding(op, images, seed):
    x = torch.randn(images, op.inputs, 8, 9)
    assert torch.equal(sample_patches(x, op, ALL, seed), unfolded(x, op))


@given(op=convolutions())
def test_patches_times_the_weights_are_the_outputs(op):
    x, layer = torch.randn(2, op.inputs, 8, 9), module_of(op)
    outputs = sample_patches(x, op, ALL, 0) @ layer.weight.flatten(1).T
    expected = layer(x).flatten(2).transpose(1, 2).reshape(-1, op.outputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)


@given(op=convolutions(), count=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_sample_takes_the_same_positions_of_every_image_and_network(op, count, seed):
    x = torch.randn(2, op.inputs, 8, 9)
    found = sample_patches(x, op, count, seed)
    positions = len(unfolded(x, op)) // 2
    assert len(found) == 2 * min(count, positions)
    assert torch.equal(found, sample_patches(x, op, count, seed))
    assert torch.equal(3 * found, sample_patches(3 * x, op, count, seed))
    first, second = found.chunk(2)
    assert torch.equal(first, sample_patches(x[:1], op, count, seed))
    assert torch.equal(second, sample_patches(x[1:], op, count, seed))


def test_a_position_is_drawn_once_and_seeds_differ():
    op = conv("layer", 1, 1, 1).op
    x = torch.arange(64.0).reshape(1, 1, 8, 8)
    found = sample_patches(x, op, 20, 0)
    assert len(found.unique()) == 20
    assert not torch.equal(found, sample_patches(x, op, 20, 1))


def test_the_patches_of_a_linear_layer_are_its_tokens():
    op = linear("head", 5, 2).op
    x = torch.randn(4, 5)
    assert torch.equal(sample_patches(x, op, 1, 0), x)
    tokens = torch.randn(4, 3, 2, 5)
    assert torch.equal(sample_patches(tokens, op, ALL, 0), tokens.reshape(-1, 5))
    some = sample_patches(tokens, op, 2, 7).reshape(4, 2, 5)
    assert all(
        any(torch.equal(one, t) for t in tokens[i].reshape(-1, 5)) for i in range(4) for one in some[i]
    )


@pytest.mark.parametrize("inputs", [3, 4096])
@pytest.mark.parametrize("images", [1, 7, 512, 100_000])
def test_there_are_enough_patches_for_every_entry_of_one(inputs, images):
    layer = conv("layer", inputs, 8)
    total = patches_per_image(layer.op, images) * images
    needed = max(MIN_PATCHES, PATCHES_PER_ENTRY * inputs * 9)
    assert needed <= total < needed + images
