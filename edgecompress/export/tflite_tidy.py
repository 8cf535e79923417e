"""Takes transposes out of TFLite files that converters leave behind and the next operator can do without."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray


def fold_transposes_into_means_(model: Any, schema: Any) -> int:  # noqa: ANN401  generated, without types
    """Lets means read what a transpose before them reads, over the axes these were before; returns how many.

    Global average pools of torch come out as a transpose to NCHW and a mean over its last two axes.
    """
    graph, folded = model.subgraphs[0], 0
    kinds = schema.BuiltinOperator
    made_by = {operator.outputs[0]: operator for operator in graph.operators}
    for mean in graph.operators:
        before = made_by.get(mean.inputs[0])
        if _kind(model, mean) != kinds.MEAN or before is None or _kind(model, before) != kinds.TRANSPOSE:
            continue
        order, axes = _constant(model, before.inputs[1]), _constant(model, mean.inputs[1])
        kept = _kept(order, axes)
        if kept and kept == sorted(kept) and not mean.builtinOptions.keepDims:
            mean.inputs = [before.inputs[0], _add_constant_(model, mean.inputs[1], order[axes])]
            folded += 1
    _drop_unread_(model, kinds.TRANSPOSE)
    return folded


def _kind(model: Any, operator: Any) -> int:  # noqa: ANN401
    code = model.operatorCodes[operator.opcodeIndex]
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))  # old files have only the second


def _constant(model: Any, tensor: int) -> NDArray[np.int32]:  # noqa: ANN401
    """Returns the values of a constant of whole numbers; none for other tensors."""
    data = model.buffers[model.subgraphs[0].tensors[tensor].buffer].data
    return np.frombuffer(b"" if data is None else bytes(data), dtype=np.int32)


def _kept(order: NDArray[np.int32], axes: NDArray[np.int32]) -> list[int]:
    """Returns which axes of the transpose's input remain, in the order the mean's output has them.

    None remain where the order is not known.
    """
    gone = {int(axis) % len(order) for axis in axes}
    return [int(axis) for position, axis in enumerate(order) if position not in gone]


def _add_constant_(model: Any, like: int, values: NDArray[np.int32]) -> int:  # noqa: ANN401
    """Adds a tensor like another with other values, as that may be shared; returns its index."""
    graph = model.subgraphs[0]
    tensor, buffer = copy.copy(graph.tensors[like]), copy.copy(model.buffers[0])
    buffer.data = np.frombuffer(values.astype(np.int32).tobytes(), dtype=np.uint8)
    model.buffers.append(buffer)
    tensor.buffer, tensor.name = len(model.buffers) - 1, b"axes_before_transpose"
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _drop_unread_(model: Any, kind: int) -> None:  # noqa: ANN401
    graph = model.subgraphs[0]
    read = {int(tensor) for operator in graph.operators for tensor in operator.inputs} | set(graph.outputs)
    graph.operators = [one for one in graph.operators if _kind(model, one) != kind or one.outputs[0] in read]
