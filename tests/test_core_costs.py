"""Costs from shapes alone are those of the layers that are built."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import conv
from torch import nn

from edgecompress.core.costs import (
    block_macs,
    block_params,
    chain_macs,
    chain_out_size,
    op_macs,
    op_params,
    out_size,
)
from edgecompress.core.types import Block, Op
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.families import Family
from edgecompress.nets.modules import block_module, module_of

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    op = Op(
        kind="conv2d",
        inputs=groups * draw(st.integers(1, 3)),
        outputs=groups * draw(st.integers(1, 3)),
        kernel=draw(pairs),
        stride=draw(pairs),
        padding=draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        dilation=draw(pairs),
        groups=groups,
        bias=draw(st.booleans()),
    )
    return op, draw(st.tuples(st.integers(7, 10), st.integers(7, 10)))


def counted(module, x):
    """Returns output, weights and multiply-accumulates seen by hooks in one forward pass."""
    macs = []

    def count(layer, _, output):
        inputs_per_output = layer.weight[0].numel()  # each output is one dot product with its filter
        macs.append(output.numel() * inputs_per_output)

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        layer.register_forward_hook(count)
    output = module(x)
    return output, sum(p.numel() for p in module.parameters()), sum(macs)


@given(case=convolutions())
def test_a_convolution_costs_what_hooks_count(case):
    op, size = case
    output, params, macs = counted(module_of(op), torch.zeros(1, op.inputs, *size))
    assert out_size(op, size) == output.shape[2:]
    assert op_params(op) == params
    assert op_macs(op, size) == macs


@given(inputs=st.integers(1, 9), outputs=st.integers(1, 9), tokens=st.integers(1, 5), bias=st.booleans())
def test_a_linear_layer_costs_its_weights_once_per_token(inputs, outputs, tokens, bias):
    op = Op(kind="linear", inputs=inputs, outputs=outputs, bias=bias)
    _, params, macs = counted(module_of(op), torch.zeros(tokens, inputs))
    assert op_params(op) == params
    assert op_macs(op, (tokens, 1)) == macs
    assert out_size(op, (tokens, 1)) == (tokens, 1)


@given(
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 5),
    tokens=st.integers(1, 6),
    windows=st.integers(1, 4),
)
def test_attention_mixes_tokens_within_each_window_alone(heads, head_dim, tokens, windows):
    width = heads * head_dim
    op = Op(kind="attention", inputs=3 * width, outputs=width, groups=heads)
    products = heads * (tokens * head_dim * tokens + tokens * tokens * head_dim)  # scores, then values
    assert op_macs(op, (tokens, windows)) == windows * products
    assert op_macs(op, (tokens, windows)) == windows * op_macs(op, (tokens, 1))


@given(cases=st.lists(convolutions(), min_size=1, max_size=3))
def test_a_chain_costs_its_layers_on_the_maps_they_really_get(cases):
    size, ops, width = (30, 31), [], 2
    for op, _ in cases:
        update = {"inputs": width, "groups": 1}
        ops.append(op.model_copy(update=update))
        width = op.outputs
    output, params, macs = counted(nn.Sequential(*map(module_of, ops)), torch.zeros(1, 2, *size))
    assert chain_macs(tuple(ops), size) == macs
    assert chain_out_size(tuple(ops), size) == output.shape[2:]
    assert sum(map(op_params, ops)) == params


@given(
    stride=st.sampled_from([1, 2]),
    first=st.sampled_from([Family("S2"), Family("S4", 2), Family("S5", 4)]),
    second=st.sampled_from([Family("S2T"), Family("S4"), Family("S5")]),
)
def test_branches_add_up(stride, first, second):
    layer = conv("layer", 6, 8, stride=stride, size=9)
    branches = tuple(pair_candidate(layer, f, 2).blocks[0].branches[0] for f in (first, second))
    block = Block(branches=branches)
    _, params, macs = counted(block_module(block), torch.zeros(1, 6, 9, 9))
    assert block_params(block) == params
    assert block_macs(block, layer.in_size) == macs
    assert block_macs(block, layer.in_size) == sum(chain_macs(b, layer.in_size) for b in branches)


def test_a_bias_is_a_weight_but_no_product():
    with_bias, without = conv("a", 3, 4, bias=True), conv("a", 3, 4)
    assert op_params(with_bias.op) == op_params(without.op) + 4
    assert op_macs(with_bias.op, (8, 8)) == op_macs(without.op, (8, 8))
