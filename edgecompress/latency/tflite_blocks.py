"""Writes one block as a TFLite file of its own, with the operators our exporters give it in a whole network.

Going through a converter takes seconds for each of the thousands of blocks of a search space; writing the
file takes milliseconds. Weights are random: their values do not change the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompress.core.costs import out_size
from edgecompress.core.store import replacing
from edgecompress.core.types import Block, Op, Size
from edgecompress.errors import MissingPackage

_SAME, _VALID = 0, 1
_FLOAT32, _INT32 = 0, 2


def write_block(block: Block, in_size: Size, path: Path, *, seed: int = 0) -> None:
    """Writes a block for one input of `in_size`: (1, H, W, C) for convolutions, (tokens, C) for linear ones.

    Raises:
        MissingPackage: ai-edge-litert is not installed.
        ArtefactError: the file cannot be written.
    """
    first = block.branches[0][0]
    writer = _Writer(_schema(), np.random.default_rng(seed))
    source = writer.tensor(_map_shape(first.kind, in_size, first.inputs), name="image")
    ends = [_write_chain(writer, ops, source, in_size) for ops in block.branches]
    for other in ends[1:]:
        ends[0] = writer.add(ends[0], other)
    content = writer.finish(source, ends[0])
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _schema() -> ModuleType:
    try:
        return import_module("ai_edge_litert.schema_py_generated")
    except ImportError:
        raise MissingPackage("TFLite: needs ai-edge-litert; run: pip install ai-edge-litert") from None


def _map_shape(kind: str, size: Size, channels: int) -> tuple[int, ...]:
    return (size[0] * size[1], channels) if kind == "linear" else (1, *size, channels)


def _write_chain(writer: _Writer, ops: Sequence[Op], source: int, in_size: Size) -> int:
    current, size = source, in_size
    for op in ops:
        current = _write_op(writer, op, current, size)
        size = out_size(op, size)
    return current


def _write_op(writer: _Writer, op: Op, source: int, size: Size) -> int:
    if op.kind == "linear":
        return writer.linear(op, source, _map_shape("linear", out_size(op, size), op.outputs))
    if any(op.padding) and not _is_same(op, size):
        source = writer.pad(op, source, size)
        size = (size[0] + 2 * op.padding[0], size[1] + 2 * op.padding[1])
        op = op.model_copy(update={"padding": (0, 0)})
    return writer.conv(op, source, _map_shape("conv2d", out_size(op, size), op.outputs), same=any(op.padding))


def _is_same(op: Op, size: Size) -> bool:
    """Tells whether TFLite's own padding puts the zeros where torch puts them: half on either side."""
    for axis in (0, 1):
        reach = op.dilation[axis] * (op.kernel[axis] - 1) + 1
        steps = -(-size[axis] // op.stride[axis])
        total = max(0, (steps - 1) * op.stride[axis] + reach - size[axis])
        if total % 2 or total // 2 != op.padding[axis]:
            return False
    return True


class _Writer:
    """Collects tensors and operators of one file."""

    def __init__(self, schema: ModuleType, rng: np.random.Generator) -> None:
        self.schema, self.rng = schema, rng
        self.tensors: list[Any] = []
        self.buffers: list[Any] = [schema.BufferT()]  # the first must be empty
        self.operators: list[Any] = []
        self.codes: list[Any] = []

    def tensor(
        self,
        shape: Sequence[int],
        *,
        values: NDArray[Any] | None = None,
        name: str = "",
        kind: int = _FLOAT32,
    ) -> int:
        """Adds a tensor and returns its index; `values` make it a constant."""
        tensor = self.schema.TensorT()
        tensor.shape, tensor.type = list(shape), kind
        tensor.name = (name or f"t{len(self.tensors)}").encode()
        tensor.buffer = 0
        if values is not None:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(values.tobytes(), dtype=np.uint8)
            self.buffers.append(buffer)
            tensor.buffer = len(self.buffers) - 1
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def weights(self, shape: Sequence[int]) -> int:
        """Adds random weights of a sensible size."""
        scale = float(np.prod(shape[1:])) ** -0.5 if len(shape) > 1 else 1.0
        values = self.rng.normal(scale=scale, size=tuple(shape)).astype(np.float32)
        return self.tensor(shape, values=values)

    def conv(self, op: Op, source: int, shape: Sequence[int], *, same: bool) -> int:
        """Adds a convolution; one group per input channel is an operator of its own."""
        depthwise = op.groups == op.inputs and op.groups > 1
        name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        options = self.schema.DepthwiseConv2DOptionsT() if depthwise else self.schema.Conv2DOptionsT()
        options.padding = _SAME if same else _VALID
        options.strideH, options.strideW = op.stride
        options.dilationHFactor, options.dilationWFactor = op.dilation
        if depthwise:
            options.depthMultiplier = op.outputs // op.inputs
            filters = self.weights((1, *op.kernel, op.outputs))
        else:
            filters = self.weights((op.outputs, *op.kernel, op.inputs // op.groups))
        kind = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
        return self._operator(name, [source, filters, self.weights((op.outputs,))], shape, kind, options)

    def linear(self, op: Op, source: int, shape: Sequence[int]) -> int:
        """Adds a linear layer."""
        inputs = [source, self.weights((op.outputs, op.inputs)), self.weights((op.outputs,))]
        options = self.schema.FullyConnectedOptionsT()
        return self._operator("FULLY_CONNECTED", inputs, shape, "FullyConnectedOptions", options)

    def pad(self, op: Op, source: int, size: Size) -> int:
        """Adds zeros around a map."""
        (top, left), (height, width) = op.padding, size
        amounts = np.array([[0, 0], [top, top], [left, left], [0, 0]], dtype=np.int32)
        inputs = [source, self.tensor((4, 2), values=amounts, kind=_INT32)]
        shape = (1, height + 2 * top, width + 2 * left, op.inputs)
        return self._operator("PAD", inputs, shape, "PadOptions", self.schema.PadOptionsT())

    def add(self, first: int, second: int) -> int:
        """Adds two maps of one shape."""
        options = self.schema.AddOptionsT()
        return self._operator("ADD", [first, second], self.tensors[first].shape, "AddOptions", options)

    def _operator(
        self, name: str, inputs: Sequence[int], shape: Sequence[int], kind: str, options: object
    ) -> int:
        output, operator = self.tensor(shape), self.schema.OperatorT()
        operator.opcodeIndex = self._code(getattr(self.schema.BuiltinOperator, name))
        operator.inputs, operator.outputs = list(inputs), [output]
        operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
        operator.builtinOptions = options
        self.operators.append(operator)
        return output

    def _code(self, builtin: int) -> int:
        for index, code in enumerate(self.codes):
            if code.builtinCode == builtin:
                return index
        code = self.schema.OperatorCodeT()
        code.builtinCode, code.version = builtin, 1
        code.deprecatedBuiltinCode = min(builtin, 127)
        self.codes.append(code)
        return len(self.codes) - 1

    def finish(self, source: int, result: int) -> bytes:
        """Returns the file."""
        flatbuffers = import_module("flatbuffers")
        graph, model = self.schema.SubGraphT(), self.schema.ModelT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = [source], [result]
        model.version, model.subgraphs = 3, [graph]
        model.buffers, model.operatorCodes = self.buffers, self.codes
        model.description = b"edgecompress block"
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
