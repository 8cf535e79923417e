"""Writes self-attention into a TFLite file, as converters write `nets.attention.attend`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgecompress.core.types import Op
from edgecompress.latency.tflite_graph import Graph


def write_attention(graph: Graph, op: Op, source: int, output: int | None = None) -> int:
    """Adds the attention of tokens whose queries, keys and values stand side by side; returns its result."""
    heads, tokens = op.groups, graph.shape(source)[-2]
    each = op.outputs // heads
    parts = [graph.activation((*graph.shape(source)[:-1], op.outputs), source) for _ in range(3)]
    axis = graph.constant(np.array(len(graph.shape(source)) - 1, np.int32))
    graph.operator("SPLIT", [axis, source], *parts, numSplits=3)
    scaled = graph.activation(graph.shape(parts[0]), source)
    factor = graph.numbers(np.array(each**-0.5, np.float32), source)
    graph.operator("MUL", [parts[0], factor], scaled)
    apart = (1, tokens, heads, each)
    queries = _transposed(graph, _reshaped(graph, scaled, apart), (0, 2, 1, 3))
    keys = _transposed(graph, _reshaped(graph, parts[1], apart), (0, 2, 3, 1))
    values = _transposed(graph, _reshaped(graph, parts[2], apart), (0, 2, 1, 3))
    scores = graph.activation((1, heads, tokens, tokens), source)
    graph.operator("BATCH_MATMUL", [queries, keys], scores)
    weights = graph.share((1, heads, tokens, tokens), source)
    graph.operator("SOFTMAX", [scores], weights, beta=1.0)
    mixed = graph.activation((1, heads, tokens, each), source)
    graph.operator("BATCH_MATMUL", [weights, values], mixed)
    joined = _transposed(graph, mixed, (0, 2, 1, 3))
    return _reshaped(graph, joined, (*graph.shape(source)[:-1], op.outputs), output)


def _reshaped(graph: Graph, source: int, shape: Sequence[int], output: int | None = None) -> int:
    output = graph.activation(shape, source) if output is None else output
    sizes = np.array(shape, np.int32)
    return graph.operator("RESHAPE", [source, graph.constant(sizes)], output, newShape=sizes)


def _transposed(graph: Graph, source: int, order: Sequence[int]) -> int:
    shape = graph.shape(source)
    output = graph.activation([shape[axis] for axis in order], source)
    return graph.operator("TRANSPOSE", [source, graph.constant(np.array(order, np.int32))], output)
