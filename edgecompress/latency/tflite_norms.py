"""Gives layer norms back their own scale and shift, which converters fold into linear layers with a bias.

The first of several layers in place of one has no bias, so there a converter leaves them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgecompress.latency.tflite_graph import Graph


def unfold_norms_(graph: Graph, sources: Iterable[int]) -> None:
    """Adds a scale and a shift behind every norm without them whose result is among these tensors."""
    for source in sorted(sources):
        operators = graph.main.operators
        ends = [place for place, one in enumerate(operators) if source in (int(t) for t in one.outputs)]
        if not ends or not _is_bare_norm(graph, operators[ends[0]]):
            continue
        graph.added = []
        shifted = _scale_and_shift(graph, source)
        for operator in operators:
            operator.inputs = [shifted if int(t) == source else int(t) for t in operator.inputs]
        graph.main.operators = [*operators[: ends[0] + 1], *graph.added, *operators[ends[0] + 1 :]]


def _is_bare_norm(graph: Graph, operator: object) -> bool:
    """Tells whether an operator is the last of a norm: it adds one number per token, itself computed."""
    inputs = [int(tensor) for tensor in operator.inputs]  # type: ignore[attr-defined]
    made = {int(output) for one in graph.main.operators for output in one.outputs}
    computed = [graph.shape(tensor) for tensor in inputs if tensor in made]
    widths = {shape[-1] for shape in computed if shape}
    return graph.kind(operator) == graph.schema.BuiltinOperator.ADD and len(computed) == 2 and 1 in widths


def _scale_and_shift(graph: Graph, source: int) -> int:
    shape = graph.shape(source)
    scaled, shifted = graph.activation(shape, source), graph.activation(shape, source)
    scale = graph.numbers(np.linspace(0.5, 1.5, shape[-1], dtype=np.float32), source)
    shift = graph.numbers(np.linspace(-1, 1, shape[-1], dtype=np.float32), source)
    graph.operator("MUL", [source, scale], scaled)
    return graph.operator("ADD", [scaled, shift], shifted)
