"""A block is one kernel: what its layers compute together is what `equivalent_kernel` says."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import conv, linear

from edgecompress.core.types import Block, Op
from edgecompress.nets.chains import equivalent_kernel, fill_, filled_block, kernels_of
from edgecompress.nets.families import Family, pair_ops
from edgecompress.nets.modules import block_layers


@pytest.fixture(autouse=True, scope="module")
def modules_in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tucker(op, first_rank, last_rank):
    """Returns three operators: 1 x 1, the kernel itself, 1 x 1."""
    inner = op.model_copy(update={"inputs": first_rank, "outputs": last_rank, "bias": False})
    return (
        Op(kind="conv2d", inputs=op.inputs, outputs=first_rank),
        inner,
        Op(kind="conv2d", inputs=last_rank, outputs=op.outputs, bias=op.bias),
    )


def both_grouped(op, groups):
    """Returns a grouped 1 x 1 operator and a kernel in as many groups of other channels."""
    inner = 6
    first = Op(kind="conv2d", inputs=op.inputs, outputs=inner, groups=groups)
    return first, op.model_copy(update={"inputs": inner, "groups": groups})


@st.composite
def branches(draw, op):
    kinds = ["S2", "S2T", "S4", "S5", "tucker", "grouped", "alone"]
    kind, rank = draw(st.sampled_from(kinds)), draw(st.integers(1, 3))
    if kind == "tucker":
        return tucker(op, rank, draw(st.integers(1, 3)))
    if kind == "grouped":
        return both_grouped(op, draw(st.sampled_from([2, 3])))
    if kind == "alone":
        return (op,)
    slices = draw(st.sampled_from([1, 2, 3, 6])) if kind in ("S4", "S5") else 1
    return pair_ops(Family(kind, slices), op, rank)


@st.composite
def blocks(draw):
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    op = Op(
        kind="conv2d",
        inputs=6,
        outputs=12,
        kernel=draw(pair),
        stride=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        padding=draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        bias=draw(st.booleans()),
    )
    first = draw(branches(op))
    rest = draw(st.lists(branches(op.model_copy(update={"bias": False})), max_size=1))
    return op, Block(branches=(first, *rest))


def random_kernels(block):
    torch.manual_seed(0)
    return tuple(
        tuple(torch.randn(op.outputs, op.inputs // op.groups, *op.kernel) for op in branch)
        for branch in block.branches
    )


@given(case=blocks())
def test_the_equivalent_kernel_is_what_the_block_computes(case):
    op, block = case
    kernels = random_kernels(block)
    x, bias = torch.randn(2, op.inputs, 8, 9), torch.randn(op.outputs) if op.bias else None
    computed = filled_block(block, kernels, bias)(x)
    expected = F.conv2d(x, equivalent_kernel(block, kernels), bias, op.stride, op.padding, op.dilation)
    torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-11)


def test_a_linear_chain_is_one_matrix():
    op = linear("head", 7, 5).op
    block = Block(branches=(pair_ops(Family("S4"), op, 3),))
    kernels, bias, x = random_kernels(block), torch.randn(5), torch.randn(4, 7)
    expected = F.linear(x, equivalent_kernel(block, kernels)[:, :, 0, 0], bias)
    torch.testing.assert_close(filled_block(block, kernels, bias)(x), expected)


@given(case=blocks())
def test_kernels_written_into_a_block_are_read_back_and_biases_stay(case):
    op, block = case
    kernels = random_kernels(block)
    bias = torch.full((op.outputs,), 7.0) if op.bias else None
    module = filled_block(block, kernels, bias)
    twice = tuple(tuple(2 * kernel for kernel in branch) for branch in kernels)
    fill_(module, twice)
    for found, written in zip(kernels_of(module), twice, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, written, strict=True))
    last = block_layers(module)[0][-1]
    assert last.bias is None if bias is None else torch.equal(last.bias.detach(), bias)


def test_kernels_of_a_float32_block_are_float64_without_a_gradient():
    op = linear("head", 3, 2).op
    module = filled_block(Block(branches=((op,),)), (((torch.randn(2, 3, 1, 1)),),), torch.zeros(2)).float()
    ((kernel,),) = kernels_of(module)
    assert (kernel.dtype, kernel.shape, kernel.requires_grad) == (torch.float64, (2, 3, 1, 1), False)


def test_gradients_flow_through_the_equivalent_kernel():
    layer = conv("layer", 4, 6)
    block = Block(branches=(pair_ops(Family("S5", 2), layer.op, 2),))
    kernels = tuple(tuple(k.requires_grad_() for k in branch) for branch in random_kernels(block))
    equivalent_kernel(block, kernels).square().sum().backward()
    assert all(k.grad is not None and bool(k.grad.abs().sum() > 0) for k in kernels[0])


def test_taps_of_two_layers_along_one_axis_are_a_bug_of_ours():
    op = Op(kind="conv2d", inputs=2, outputs=2, kernel=(3, 1), padding=(1, 0))
    block = Block(branches=((op, op),))
    with pytest.raises(AssertionError, match="one axis"):
        equivalent_kernel(block, random_kernels(block))
