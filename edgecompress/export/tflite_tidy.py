"""Takes operators out of TFLite files that move no data: converters leave some behind."""

from __future__ import annotations

from typing import Any


def drop_idle_transposes_(model: Any, schema: Any) -> int:  # noqa: ANN401  generated classes without types
    """Removes transposes of tensors with at most one axis longer than 1 before a reshape; returns how many.

    The elements stay in their order, so the reshape may read what the transpose read.
    """
    graph = model.subgraphs[0]
    transpose, reshape = schema.BuiltinOperator.TRANSPOSE, schema.BuiltinOperator.RESHAPE
    dropped = []
    for operator in graph.operators:
        if _kind(model, operator) != transpose or not _is_idle(graph, operator):
            continue
        readers = [one for one in graph.operators if operator.outputs[0] in one.inputs]
        is_result = operator.outputs[0] in graph.outputs
        if readers and not is_result and all(_kind(model, one) == reshape for one in readers):
            for reader in readers:
                reader.inputs[0] = operator.inputs[0]
            dropped.append(operator)
    graph.operators = [one for one in graph.operators if not any(one is gone for gone in dropped)]
    return len(dropped)


def _kind(model: Any, operator: Any) -> int:  # noqa: ANN401
    code = model.operatorCodes[operator.opcodeIndex]
    return max(int(code.builtinCode), int(code.deprecatedBuiltinCode))  # old files have only the second


def _is_idle(graph: Any, operator: Any) -> bool:  # noqa: ANN401
    shape = graph.tensors[operator.inputs[0]].shape
    return sum(int(axis) != 1 for axis in shape) <= 1
