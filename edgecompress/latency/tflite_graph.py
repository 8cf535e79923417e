"""A TFLite file in memory: tensors and operators are added to it, unused ones dropped.

Weights are random: their values do not change the time. Whatever reads an int8 tensor is written in int8,
with scales that neither overflow nor leave the range runtimes accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompress.core.store import replacing
from edgecompress.devices.litert_graph import check_tflite, litert_module
from edgecompress.devices.tflite_contents import DAMAGED
from edgecompress.errors import ExportError

FLOAT32, INT32, INT8 = 0, 2, 9
"""Types of tensors, as the format numbers them."""

MISSING = -1
"""Stands for an optional input that is not there."""

SCALE = 0.05
"""Of int8 tensors of files that are written from nothing."""

_SPREAD = 74.0
"""Standard deviation of random int8 weights."""


class Graph:
    """A file to which operators are added; those added are in `added`, in the order they run."""

    def __init__(self, model: Any, *, seed: int) -> None:  # noqa: ANN401  generated classes without types
        self.model, self.schema = model, _schema()
        self.rng = np.random.default_rng(seed)
        self.added: list[Any] = []

    @property
    def main(self) -> Any:  # noqa: ANN401
        """The graph that runs."""
        return self.model.subgraphs[0]

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        shape = self.main.tensors[tensor].shape
        return () if shape is None else tuple(int(axis) for axis in shape)

    def kind(self, operator: Any) -> int:  # noqa: ANN401
        """Returns which operator it is, as the format numbers them."""
        code = self.model.operatorCodes[operator.opcodeIndex]
        return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))  # old files have only the second

    def constant_of(self, tensor: int) -> NDArray[np.int32]:
        """Returns the values of a constant of whole numbers; none for other tensors."""
        data = self.model.buffers[self.main.tensors[tensor].buffer].data
        return np.frombuffer(b"" if data is None else bytes(data), dtype=np.int32)

    def is_int8(self, tensor: int) -> bool:
        """Tells whether a tensor holds int8."""
        return bool(self.main.tensors[tensor].type == INT8)

    def activation(self, shape: Sequence[int], like: int) -> int:
        """Adds a tensor that is computed, of the type and scale of another."""
        index = self._tensor(shape, self.main.tensors[like].type)
        self.main.tensors[index].quantization = self.main.tensors[like].quantization
        return index

    def share(self, shape: Sequence[int], like: int) -> int:
        """Adds a tensor of values between 0 and 1, of the type of another."""
        index = self.activation(shape, like)
        if self.is_int8(like):  # the one scale kernels of softmax write
            self._quantise(index, np.array([1 / 256], np.float32), zero=-128)
        return index

    def entrance(self, shape: Sequence[int], *, int8: bool) -> int:
        """Adds the tensor a file is given."""
        index = self._tensor(shape, INT8 if int8 else FLOAT32, "image")
        if int8:
            self._quantise(index, np.array([SCALE], np.float32))
        return index

    def constant(self, values: NDArray[Any]) -> int:
        """Adds a constant of whole numbers or floats."""
        kind = {"int32": INT32, "int8": INT8, "float32": FLOAT32}[values.dtype.name]
        index, buffer = self._tensor(values.shape, kind), self.schema.BufferT()
        buffer.data = np.frombuffer(values.tobytes(), dtype=np.uint8)
        self.model.buffers.append(buffer)
        self.main.tensors[index].buffer = len(self.model.buffers) - 1
        return index

    def numbers(self, values: NDArray[np.float32], like: int) -> int:
        """Adds a constant in the type of a tensor."""
        if not self.is_int8(like):
            return self.constant(values)
        scale = np.float32(np.abs(values).max() / 127)
        index = self.constant(np.round(values / scale).astype(np.int8))
        self._quantise(index, np.array([scale], np.float32))
        return index

    def weights(
        self, shape: Sequence[int], source: int, output: int, *, axis: int, bias: bool
    ) -> tuple[int, int]:
        """Adds random weights, a channel each along `axis`, and their bias; `MISSING` without one."""
        channels = shape[axis]
        spread = float(np.prod(shape) / channels) ** -0.5
        if self.is_int8(source):
            return self._int8_weights(shape, source, output, axis, spread, bias=bias)
        values = self.rng.standard_normal(tuple(shape), np.float32) * np.float32(spread)
        shift = self.rng.standard_normal(channels, np.float32)
        return self.constant(values), self.constant(shift) if bias else MISSING

    def _int8_weights(
        self, shape: Sequence[int], source: int, output: int, axis: int, spread: float, *, bias: bool
    ) -> tuple[int, int]:
        filters = self.constant(self.rng.integers(-127, 128, tuple(shape), np.int8))
        scale = spread / _SPREAD * self._scale(output) / self._scale(source)
        self._quantise(filters, np.full(shape[axis], scale, np.float32), axis)
        if not bias:
            return filters, MISSING
        shift = self.constant(self.rng.integers(-1000, 1000, shape[axis], np.int32))
        self._quantise(shift, np.full(shape[axis], scale * self._scale(source), np.float32))
        return filters, shift

    def operator(self, name: str, inputs: Iterable[int], output: int, *others: int, **options: object) -> int:
        """Adds an operator by its name in the format, such as `CONV_2D`, and returns its first output."""
        operator = self.schema.OperatorT()
        operator.opcodeIndex = self._code(getattr(self.schema.BuiltinOperator, name))
        operator.inputs, operator.outputs = list(inputs), [output, *others]
        kind = _OPTIONS[name]
        operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
        operator.builtinOptions = getattr(self.schema, f"{kind}T")()
        for key, value in options.items():
            setattr(operator.builtinOptions, key, value)
        self.added.append(operator)
        return output

    def write(self, path: Path) -> None:
        """Writes the file, without tensors nothing uses.

        Raises:
            ArtefactError: it cannot be written.
        """
        _drop_unused_tensors_(self.model)
        _drop_unused_buffers_(self.model)
        builder = import_module("flatbuffers").Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        with replacing(path) as temporary:
            temporary.write_bytes(builder.Output())

    def _tensor(self, shape: Sequence[int], kind: int, name: str = "") -> int:
        tensor = self.schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer = list(shape), kind, 0
        tensor.name = (name or f"block/t{len(self.main.tensors)}").encode()
        self.main.tensors.append(tensor)
        return len(self.main.tensors) - 1

    def _quantise(self, tensor: int, scale: NDArray[np.float32], axis: int = 0, zero: int = 0) -> None:
        quantization = self.schema.QuantizationParametersT()
        quantization.scale, quantization.zeroPoint = scale, np.full(len(scale), zero, np.int64)
        quantization.quantizedDimension = axis
        self.main.tensors[tensor].quantization = quantization

    def _scale(self, tensor: int) -> float:
        return float(self.main.tensors[tensor].quantization.scale[0])

    def _code(self, builtin: int) -> int:
        for index, code in enumerate(self.model.operatorCodes):
            if max(int(code.builtinCode), int(code.deprecatedBuiltinCode)) == builtin:
                return index
        code = self.schema.OperatorCodeT()
        code.builtinCode, code.version = builtin, 1
        code.deprecatedBuiltinCode = min(builtin, 127)
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1


_OPTIONS = {
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "PAD": "PadOptions",
    "ADD": "AddOptions",
    "MUL": "MulOptions",
    "GELU": "GeluOptions",
    "SPLIT": "SplitOptions",
    "RESHAPE": "ReshapeOptions",
    "TRANSPOSE": "TransposeOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "SOFTMAX": "SoftmaxOptions",
}
"""Which record holds an operator's options."""


def new_graph(*, seed: int) -> Graph:
    """Returns an empty file.

    Raises:
        MissingPackage: ai-edge-litert is not installed.
    """
    schema = _schema()
    model, main = schema.ModelT(), schema.SubGraphT()
    model.version, model.subgraphs, model.description = 3, [main], b"edgecompress block"
    model.buffers, model.operatorCodes = [schema.BufferT()], []  # the first buffer must be empty
    main.tensors, main.operators, main.inputs, main.outputs = [], [], [], []
    return Graph(model, seed=seed)


def read_graph(file: Path, *, seed: int) -> Graph:
    """Reads a file.

    Raises:
        ExportError: the file is missing, damaged or not TFLite.
        MissingPackage: ai-edge-litert is not installed.
    """
    check_tflite(file)
    schema = _schema()
    content = file.read_bytes()
    try:
        model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
        _take_in_buffers_(model, content)
        return Graph(model, seed=seed)
    except DAMAGED:
        raise ExportError(f"{file}: damaged or cut off; export it again") from None


def _take_in_buffers_(model: Any, content: bytes) -> None:  # noqa: ANN401
    """Gives buffers their values where these stand behind the tables of the file."""
    for buffer in model.buffers:
        if buffer.offset:
            values = content[buffer.offset : buffer.offset + buffer.size]
            buffer.data, buffer.offset, buffer.size = np.frombuffer(values, dtype=np.uint8), 0, 0


def _schema() -> Any:  # noqa: ANN401
    return litert_module("ai_edge_litert.schema_py_generated")


def _drop_unused_tensors_(model: Any) -> None:  # noqa: ANN401
    main = model.subgraphs[0]
    lists = [(one, name) for one in (*main.operators, main) for name in ("inputs", "outputs")]
    used = sorted({int(t) for one, name in lists for t in getattr(one, name)} - {MISSING})
    place = {tensor: position for position, tensor in enumerate(used)} | {MISSING: MISSING}
    for one, name in lists:
        setattr(one, name, np.array([place[int(t)] for t in getattr(one, name)], np.int32))
    for signature in model.signatureDefs or []:
        for entry in (*signature.inputs, *signature.outputs):
            entry.tensorIndex = place[int(entry.tensorIndex)]
    main.tensors = [main.tensors[tensor] for tensor in used]


def _drop_unused_buffers_(model: Any) -> None:  # noqa: ANN401
    holders = [tensor for graph in model.subgraphs for tensor in graph.tensors] + list(model.metadata or [])
    used = sorted({0, *(int(holder.buffer) for holder in holders)})
    place = {buffer: position for position, buffer in enumerate(used)}
    for holder in holders:
        holder.buffer = place[int(holder.buffer)]
    model.buffers = [model.buffers[buffer] for buffer in used]
