"""Writes the operators of a block into a TFLite file, as converters write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgecompress.core.costs import out_size
from edgecompress.core.types import Block, Op, Size
from edgecompress.latency.tflite_attention import write_attention
from edgecompress.latency.tflite_graph import Graph

WEIGHTED = ("conv2d", "linear")
"""Kinds of operators between which no bias stands: it would be part of the last one's."""

SAME, VALID = 0, 1
"""How a convolution pads, as the format numbers it."""


@dataclass(frozen=True)
class Style:
    """What converters write differently; runtimes do the same with either."""

    plain_padding: int
    """Of 1 x 1 convolutions, which need none."""
    one_channel_depthwise: bool
    """Whether a convolution of one channel counts as depthwise."""


ONNX2TF = Style(plain_padding=SAME, one_channel_depthwise=False)
LITERT_TORCH = Style(plain_padding=VALID, one_channel_depthwise=True)


@dataclass(frozen=True)
class End:
    """Where a block's result goes."""

    output: int | None = None
    """A tensor that is there already; None: a new one."""
    activation: int = 0
    """That the last operator has built in, as the format numbers it."""


def write_block_ops(
    graph: Graph, block: Block, source: int, in_size: Size, end: End, style: Style = ONNX2TF
) -> int:
    """Adds the operators of a block that reads `source`, and returns the tensor with its result."""
    first, *others = block.branches
    if not others:
        return _Chain(graph, style, biased=True).write(first, source, in_size, end)
    total = _Chain(graph, style, biased=True).write(first, source, in_size, End())
    for position, ops in enumerate(others, start=2):
        added = _Chain(graph, style, biased=False).write(ops, source, in_size, End())
        total = _add(graph, total, added, end if position == len(block.branches) else End())
    return total


def _add(graph: Graph, first: int, second: int, end: End) -> int:
    output = graph.activation(graph.shape(first), first) if end.output is None else end.output
    return graph.operator("ADD", [first, second], output, fusedActivationFunction=end.activation)


def map_shape(kind: str, size: Size, channels: int) -> tuple[int, ...]:
    """Returns the shape of a map: (1, H, W, C) for convolutions, (tokens, C) for everything else."""
    return (1, *size, channels) if kind == "conv2d" else (size[0] * size[1], channels)


@dataclass(frozen=True)
class _Chain:
    graph: Graph
    style: Style
    biased: bool
    """Whether the last operator has a bias in any case."""

    def write(self, ops: Sequence[Op], source: int, in_size: Size, end: End) -> int:
        current, size = source, in_size
        for position, op in enumerate(ops):
            last = position == len(ops) - 1
            bias = self.biased if last else ops[position + 1].kind not in WEIGHTED
            current = self._op(op, current, size, end if last else End(), bias=bias)
            size = out_size(op, size)
        return current

    def _op(self, op: Op, source: int, size: Size, end: End, *, bias: bool) -> int:
        if op.kind == "linear":
            return self._linear(op, source, end, bias=bias)
        if op.kind == "gelu":
            return self.graph.operator("GELU", [source], self._output(end, source))
        if op.kind == "attention":
            return write_attention(self.graph, op, source, end.output, windows=size[1])
        if any(op.padding) and not _is_same(op, size):
            (top, left), graph = op.padding, self.graph
            source = write_pad(graph, source, (top, top), (left, left))
            size = (size[0] + 2 * top, size[1] + 2 * left)
            op = op.model_copy(update={"padding": (0, 0)})
        return self._conv(op, source, size, end)

    def _output(self, end: End, like: int) -> int:
        return self.graph.activation(self.graph.shape(like), like) if end.output is None else end.output

    def _conv(self, op: Op, source: int, size: Size, end: End) -> int:
        """Adds a convolution; one group per input channel is an operator of its own."""
        graph = self.graph
        output = end.output
        if output is None:
            output = graph.activation(map_shape("conv2d", out_size(op, size), op.outputs), source)
        depthwise = op.groups == op.inputs and (op.groups > 1 or self.style.one_channel_depthwise)
        shape = (1, *op.kernel, op.outputs) if depthwise else (op.outputs, *op.kernel, op.inputs // op.groups)
        inputs = graph.weights(shape, source, output, axis=3 if depthwise else 0, bias=True)
        return graph.operator(
            "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D",
            (source, *inputs),
            output,
            padding=self._padding(op),
            strideH=op.stride[0],
            strideW=op.stride[1],
            dilationHFactor=op.dilation[0],
            dilationWFactor=op.dilation[1],
            fusedActivationFunction=end.activation,
            **({"depthMultiplier": op.outputs // op.inputs} if depthwise else {}),
        )

    def _padding(self, op: Op) -> int:
        if any(op.padding):
            return SAME
        return self.style.plain_padding if op.kernel == op.stride == (1, 1) else VALID

    def _linear(self, op: Op, source: int, end: End, *, bias: bool) -> int:
        graph, output = self.graph, end.output
        before = graph.shape(source)[:-1]
        if output is None:
            output = graph.activation((*before, op.outputs), source)
        inputs = graph.weights((op.outputs, op.inputs), source, output, axis=0, bias=bias)
        return graph.operator(
            "FULLY_CONNECTED",
            (source, *inputs),
            output,
            keepNumDims=graph.shape(output)[:-1] == before,
            fusedActivationFunction=end.activation,
        )


def write_pad(graph: Graph, source: int, rows: Size, columns: Size) -> int:
    """Adds zeros before and after the rows and the columns of a map."""
    one, height, width, channels = graph.shape(source)
    amounts = np.array([(0, 0), rows, columns, (0, 0)], dtype=np.int32)
    output = graph.activation((one, height + sum(rows), width + sum(columns), channels), source)
    return graph.operator("PAD", [source, graph.constant(amounts)], output)


def _is_same(op: Op, size: Size) -> bool:
    """Tells whether TFLite's own padding puts the zeros where torch puts them: half on either side."""
    for axis in (0, 1):
        reach = op.dilation[axis] * (op.kernel[axis] - 1) + 1
        steps = -(-size[axis] // op.stride[axis])
        total = max(0, (steps - 1) * op.stride[axis] + reach - size[axis])
        if total % 2 or total // 2 != op.padding[axis]:
            return False
    return True
