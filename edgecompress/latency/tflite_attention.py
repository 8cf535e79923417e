"""Writes self-attention into a TFLite file, as converters write `nets.attention.attend`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgecompress.core.types import Op
from edgecompress.latency.tflite_graph import Graph


def write_attention(graph: Graph, op: Op, source: int, output: int | None = None, *, windows: int = 1) -> int:
    """Adds the attention of tokens whose queries, keys and values stand side by side; returns its result.

    Tokens of one window come after those of the window before; several get a bias of their positions.
    """
    heads, tokens = op.groups, graph.shape(source)[-2] // windows
    q, k, v = _parts(graph, op, source)
    apart = (windows, tokens, heads, op.outputs // heads)
    queries = _transposed(graph, _reshaped(graph, q, apart), (0, 2, 1, 3))
    keys = _transposed(graph, _reshaped(graph, k, apart), (0, 2, 3, 1))
    values = _transposed(graph, _reshaped(graph, v, apart), (0, 2, 1, 3))
    mixed = _mixed(graph, queries, keys, values)
    joined = _transposed(graph, mixed, (0, 2, 1, 3))
    return _reshaped(graph, joined, (*graph.shape(source)[:-1], op.outputs), output)


def _parts(graph: Graph, op: Op, source: int) -> tuple[int, int, int]:
    """Returns scaled queries, keys and values."""
    before = graph.shape(source)[:-1]
    first, second, third = (graph.activation((*before, op.outputs), source) for _ in range(3))
    axis = graph.constant(np.array(len(before), np.int32))
    graph.operator("SPLIT", [axis, source], first, second, third, numSplits=3)
    factor = graph.numbers(np.array((op.outputs // op.groups) ** -0.5, np.float32), source)
    scaled = graph.activation(graph.shape(first), source)
    return graph.operator("MUL", [first, factor], scaled), second, third


def _mixed(graph: Graph, queries: int, keys: int, values: int) -> int:
    windows, heads, tokens, each = graph.shape(queries)
    shape = (windows, heads, tokens, tokens)
    scores = graph.operator("BATCH_MATMUL", [queries, keys], graph.activation(shape, queries))
    if windows > 1:
        bias = graph.numbers(np.ones((1, *shape[1:]), np.float32), queries)
        scores = graph.operator("ADD", [scores, bias], graph.activation(shape, queries))
    weights = graph.share(shape, queries)
    graph.operator("SOFTMAX", [scores], weights, beta=1.0)
    mixed = graph.activation((windows, heads, tokens, each), queries)
    return graph.operator("BATCH_MATMUL", [weights, values], mixed)


def _reshaped(graph: Graph, source: int, shape: Sequence[int], output: int | None = None) -> int:
    output = graph.activation(shape, source) if output is None else output
    sizes = np.array(shape, np.int32)
    return graph.operator("RESHAPE", [source, graph.constant(sizes)], output, newShape=sizes)


def _transposed(graph: Graph, source: int, order: Sequence[int]) -> int:
    shape = graph.shape(source)
    output = graph.activation([shape[axis] for axis in order], source)
    return graph.operator("TRANSPOSE", [source, graph.constant(np.array(order, np.int32))], output)
