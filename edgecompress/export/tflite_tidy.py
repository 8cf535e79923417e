"""Takes transposes out of TFLite files that converters leave behind and the next operator can do without."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INT32 = 2


def fold_transposes_into_means_(model: Any, schema: Any) -> int:  # noqa: ANN401  generated, without types
    """Lets means read what a transpose before them reads, over the axes these were before; returns how many.

    Global average pools of torch come out as a transpose to NCHW and a mean over its last two axes.
    """
    graph, kinds = model.subgraphs[0], schema.BuiltinOperator
    made_by = {operator.outputs[0]: operator for operator in graph.operators}
    folded = []
    for mean in graph.operators:
        before = made_by.get(mean.inputs[0])
        if _kind(model, mean) != kinds.MEAN or before is None or _kind(model, before) != kinds.TRANSPOSE:
            continue
        order, axes = _constant(model, before.inputs[1]), _constant(model, mean.inputs[1])
        kept = _kept(order, axes)
        alone = _readers(graph, before.outputs[0]) == 1 and before.outputs[0] not in graph.outputs
        if alone and kept and kept == sorted(kept) and not mean.builtinOptions.keepDims:
            # no tensor may be left that nothing fills, so the transpose's own becomes the new axes
            _become_constant_(model, before.outputs[0], order[axes])
            mean.inputs = [before.inputs[0], before.outputs[0]]
            folded.append(before)
    graph.operators = [one for one in graph.operators if not any(one is gone for gone in folded)]
    return len(folded)


def _kind(model: Any, operator: Any) -> int:  # noqa: ANN401
    code = model.operatorCodes[operator.opcodeIndex]
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))  # old files have only the second


def _readers(graph: Any, tensor: int) -> int:  # noqa: ANN401
    return sum(int(one) == tensor for operator in graph.operators for one in operator.inputs)


def _constant(model: Any, tensor: int) -> NDArray[np.int32]:  # noqa: ANN401
    """Returns the values of a constant of whole numbers; none for other tensors."""
    data = model.buffers[model.subgraphs[0].tensors[tensor].buffer].data
    return np.frombuffer(b"" if data is None else bytes(data), dtype=np.int32)


def _kept(order: NDArray[np.int32], axes: NDArray[np.int32]) -> list[int]:
    """Returns which axes of the transpose's input remain, in the order the mean's output has them.

    None remain where the order is not known.
    """
    gone = {int(axis) % len(order) for axis in axes} if len(order) else set()
    return [int(axis) for position, axis in enumerate(order) if position not in gone]


def _become_constant_(model: Any, index: int, values: NDArray[np.int32]) -> None:  # noqa: ANN401
    tensor, buffer = model.subgraphs[0].tensors[index], copy.copy(model.buffers[0])
    buffer.data = np.frombuffer(values.astype(np.int32).tobytes(), dtype=np.uint8)
    model.buffers.append(buffer)
    tensor.buffer, tensor.type, tensor.shape = len(model.buffers) - 1, _INT32, [len(values)]
    tensor.shapeSignature, tensor.quantization = None, None
