"""Operators and tensors of a TFLite file that is being changed, as the generated classes hold them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT32, INT32 = 0, 2
"""Codes of types."""


def operator_code(model: Any, schema: Any, kind: int) -> int:  # noqa: ANN401
    """Returns the index of a kind of operator in the file's list, which gets it if it must."""
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = kind
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def add_tensor(model: Any, like: Any, name: bytes, shape: list[int] | None = None) -> int:  # noqa: ANN401
    """Adds a tensor like another one, which an operator is to fill, and returns its index."""
    tensors = model.subgraphs[0].tensors
    tensor = copy.copy(like)
    tensor.name, tensor.buffer = name, 0
    if shape is not None:
        tensor.shape, tensor.shapeSignature = shape, None
    tensors.append(tensor)
    return len(tensors) - 1


def fill_(model: Any, index: int, values: NDArray[Any]) -> None:  # noqa: ANN401
    """Gives a tensor constant values."""
    buffer = copy.copy(model.buffers[0])
    buffer.data = np.frombuffer(values.tobytes(), dtype=np.uint8)
    model.buffers.append(buffer)
    model.subgraphs[0].tensors[index].buffer = len(model.buffers) - 1


def kind(model: Any, operator: Any) -> int:  # noqa: ANN401
    """Returns which operator it is, as `BuiltinOperator` numbers them."""
    code = model.operatorCodes[operator.opcodeIndex]
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))  # old files have only the second


def readers(graph: Any, tensor: int) -> int:  # noqa: ANN401
    """Returns how often operators read a tensor."""
    return sum(int(one) == tensor for operator in graph.operators for one in operator.inputs)


def constant(model: Any, tensor: int) -> NDArray[np.int32]:  # noqa: ANN401
    """Returns the values of a constant of whole numbers; none for other tensors."""
    data = model.buffers[model.subgraphs[0].tensors[tensor].buffer].data
    return np.frombuffer(b"" if data is None else bytes(data), dtype=np.int32)


def become_constant_(model: Any, index: int, values: NDArray[np.int32]) -> None:  # noqa: ANN401
    """Makes a tensor that is not needed any more a constant of whole numbers: none may be left unfilled."""
    tensor = model.subgraphs[0].tensors[index]
    fill_(model, index, values.astype(np.int32))
    tensor.type, tensor.shape = INT32, list(values.shape)
    tensor.shapeSignature, tensor.quantization = None, None
