"""Where the layers of a network are in a TFLite file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edgecompress.core.types import Op, Size
from edgecompress.latency.signatures import Signature, signature
from edgecompress.latency.tflite_graph import MISSING, Graph

Operator = Any
"""A record of the generated code, which has no types."""


@dataclass(frozen=True)
class Place:
    """The operator that writes a layer's result."""

    operator: Operator
    signature: Signature
    op: Op
    source: int
    """The tensor the layer reads."""
    linear: bool
    pad: Operator = None
    """The operator that puts zeros around its input; None where there is none."""
    merged: int | None = None
    """Equal for linear layers a converter has made one of, since they read the same."""

    @property
    def output(self) -> int:
        """The tensor the layer writes."""
        return int(self.operator.outputs[0])

    @property
    def activation(self) -> int:
        """That the layer has built in, as the format numbers it."""
        return 0 if self.merged is not None else int(self.operator.builtinOptions.fusedActivationFunction)


def find_places(graph: Graph) -> Iterator[Place]:
    """Yields every place a layer may be at, in the order they run."""
    kinds, links = graph.schema.BuiltinOperator, _Links(graph)
    for operator in graph.main.operators:
        kind = graph.kind(operator)
        if kind == kinds.FULLY_CONNECTED:
            yield from _merged(graph, operator, links) or [_linear(graph, operator)]
        elif kind in (kinds.CONV_2D, kinds.DEPTHWISE_CONV_2D):
            yield _conv(graph, operator, links)


class _Links:
    """Which operators write and read each tensor."""

    def __init__(self, graph: Graph) -> None:
        self.writer = {int(output): one for one in graph.main.operators for output in one.outputs}
        self.readers: dict[int, list[Operator]] = {}
        for one in graph.main.operators:
            for tensor in one.inputs:
                self.readers.setdefault(int(tensor), []).append(one)


def _linear(graph: Graph, operator: Operator) -> Place:
    outputs, inputs = graph.shape(int(operator.inputs[1]))
    op = Op(kind="linear", inputs=inputs, outputs=outputs)
    return Place(operator, _of_tokens(graph, op, operator), op, int(operator.inputs[0]), linear=True)


def _of_tokens(graph: Graph, op: Op, operator: Operator) -> Signature:
    tokens = math.prod(graph.shape(int(operator.outputs[0]))[:-1])
    return signature(op, (tokens, 1))


def _merged(graph: Graph, operator: Operator, links: _Links) -> list[Place]:
    """Returns the layers of a product without a bias whose result is cut up and given a bias each."""
    inputs, output = [int(tensor) for tensor in operator.inputs], int(operator.outputs[0])
    slices = links.readers.get(output, [])
    ends = [end for end in (_end_of_part(graph, one, links) for one in slices) if end is not None]
    if len(slices) < 2 or len(ends) < len(slices) or (inputs[2:] or [MISSING]) != [MISSING]:
        return []
    channels = graph.shape(inputs[1])[1]
    places = []
    for end in ends:
        op = Op(kind="linear", inputs=channels, outputs=graph.shape(int(end.outputs[0]))[-1])
        places.append(Place(end, _of_tokens(graph, op, end), op, inputs[0], linear=True, merged=output))
    return places


def _end_of_part(graph: Graph, operator: Operator, links: _Links) -> Operator | None:
    """Returns where a part gets its bias, or the factor after it; None: the operator is no such part."""
    kinds = graph.schema.BuiltinOperator
    if graph.kind(operator) != kinds.STRIDED_SLICE:
        return None
    end = None
    for kind in (kinds.ADD, kinds.MUL):
        readers = links.readers.get(int(operator.outputs[0]), [])
        if len(readers) != 1 or graph.kind(readers[0]) != kind or not _reads_constant(readers[0], links):
            return end
        end = operator = readers[0]
    return end


def _reads_constant(operator: Operator, links: _Links) -> bool:
    return any(int(tensor) not in links.writer for tensor in operator.inputs)


def _conv(graph: Graph, operator: Operator, links: _Links) -> Place:
    source = int(operator.inputs[0])
    op, before = _conv_op(graph, operator), links.writer.get(source)
    _, height, width, _ = graph.shape(int(operator.outputs[0]))
    out: Size = (height, width)
    padded = before is not None and graph.kind(before) == graph.schema.BuiltinOperator.PAD
    return Place(operator, signature(op, out), op, source, linear=False, pad=before if padded else None)


def _conv_op(graph: Graph, operator: Operator) -> Op:
    channels = graph.shape(int(operator.inputs[0]))[3]
    first, *kernel, last = graph.shape(int(operator.inputs[1]))
    depthwise = graph.kind(operator) == graph.schema.BuiltinOperator.DEPTHWISE_CONV_2D
    options = operator.builtinOptions
    return Op(
        kind="conv2d",
        inputs=channels,
        outputs=last if depthwise else first,
        kernel=(kernel[0], kernel[1]),
        stride=(options.strideH, options.strideW),
        dilation=(options.dilationHFactor, options.dilationWFactor),
        groups=channels if depthwise else channels // last,
    )
