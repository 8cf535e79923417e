"""Mends TFLite files as converters leave them: transposes the next operator can do without, and operators
XNNPACK does not know though it knows others that do the same."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecompress.export.tflite_graph import (
    FLOAT32,
    add_tensor,
    become_constant_,
    constant,
    fill_,
    kind,
    operator_code,
    readers,
)


def fold_transposes_into_means_(model: Any, schema: Any) -> int:  # noqa: ANN401  generated, without types
    """Lets means read what a transpose before them reads, over the axes these were before; returns how many.

    Global average pools of torch come out as a transpose to NCHW and a mean over its last two axes.
    """
    graph, kinds = model.subgraphs[0], schema.BuiltinOperator
    made_by = {operator.outputs[0]: operator for operator in graph.operators}
    folded = []
    for mean in graph.operators:
        before = made_by.get(mean.inputs[0])
        if kind(model, mean) != kinds.MEAN or before is None or kind(model, before) != kinds.TRANSPOSE:
            continue
        order, axes = constant(model, before.inputs[1]), constant(model, mean.inputs[1])
        kept = _kept(order, axes)
        alone = readers(graph, before.outputs[0]) == 1 and before.outputs[0] not in graph.outputs
        if alone and kept and kept == sorted(kept) and not mean.builtinOptions.keepDims:
            # no tensor may be left that nothing fills, so the transpose's own becomes the new axes
            become_constant_(model, before.outputs[0], order[axes])
            mean.inputs = [before.inputs[0], before.outputs[0]]
            folded.append(before)
    graph.operators = [one for one in graph.operators if not any(one is gone for gone in folded)]
    return len(folded)


def cancel_transposes_(model: Any, schema: Any) -> int:  # noqa: ANN401
    """Takes out transposes that undo one another, also around a padding; returns how many.

    Padding of what is not the output of a convolution alone comes out as a transpose to NCHW, the padding
    and a transpose back.
    """
    graph = model.subgraphs[0]
    before = len(graph.operators)
    for padding in [one for one in graph.operators if kind(model, one) == schema.BuiltinOperator.PAD]:
        _pad_first_(model, schema, padding)
    for one in _transposes(model, schema):
        made = _maker(graph, one.inputs[0])
        if made is not None and _undoes(model, schema, one, made):
            _read_instead_(graph, one.outputs[0], made.inputs[0])
    while unread := [one for one in _transposes(model, schema) if _is_unread(graph, one.outputs[0])]:
        graph.operators = [one for one in graph.operators if not any(one is gone for gone in unread)]
        for one in unread:
            become_constant_(model, one.outputs[0], np.zeros(1, dtype=np.int32))
    return before - len(graph.operators)


def _pad_first_(model: Any, schema: Any, padding: Any) -> None:  # noqa: ANN401
    """Lets a padding between two transposes that undo one another read what the first one reads."""
    graph = model.subgraphs[0]
    first = _maker(graph, padding.inputs[0])
    after = [one for one in graph.operators if padding.outputs[0] in list(one.inputs)]
    pads = constant(model, padding.inputs[1]).reshape(-1, 2)
    if first is None or not after or not len(pads) or padding.outputs[0] in list(graph.outputs):
        return
    if not all(_undoes(model, schema, one, first) for one in after):
        return
    order = constant(model, first.inputs[1])
    back = after[0].outputs[0]  # has the shape and place the padding's output shall have
    moved = np.empty_like(pads)
    moved[order] = pads
    become_constant_(model, padding.outputs[0], moved)
    padding.inputs, padding.outputs = [first.inputs[0], padding.outputs[0]], [back]
    for one in after[1:]:
        _read_instead_(graph, one.outputs[0], back)
    graph.operators = [one for one in graph.operators if not any(one is gone for gone in after)]


def _transposes(model: Any, schema: Any) -> list[Any]:  # noqa: ANN401
    operators = model.subgraphs[0].operators
    return [one for one in operators if kind(model, one) == schema.BuiltinOperator.TRANSPOSE]


def _undoes(model: Any, schema: Any, second: Any, first: Any) -> bool:  # noqa: ANN401
    """Tells whether two operators are transposes that together change nothing."""
    if any(kind(model, one) != schema.BuiltinOperator.TRANSPOSE for one in (first, second)):
        return False
    one, other = (constant(model, each.inputs[1]) for each in (first, second))
    return 0 < len(one) == len(other) and bool((one[other] == np.arange(len(one))).all())


def _maker(graph: Any, tensor: int) -> Any:  # noqa: ANN401
    return next((one for one in graph.operators if tensor in list(one.outputs)), None)


def _read_instead_(graph: Any, tensor: int, other: int) -> None:  # noqa: ANN401
    for one in graph.operators:
        one.inputs = [other if int(each) == tensor else int(each) for each in one.inputs]


def _is_unread(graph: Any, tensor: int) -> bool:  # noqa: ANN401
    return not readers(graph, tensor) and tensor not in list(graph.outputs)


def write_clamps_plainly_(model: Any, schema: Any) -> int:  # noqa: ANN401
    """Writes clamps to 0..1 as a ReLU and a minimum with 1, and returns how many."""
    graph, kinds = model.subgraphs[0], schema.BuiltinOperator
    clamps = [one for one in graph.operators if kind(model, one) == kinds.RELU_0_TO_1]
    if not clamps or any(graph.tensors[one.inputs[0]].type != FLOAT32 for one in clamps):
        return 0
    relu, minimum = (operator_code(model, schema, name) for name in (kinds.RELU, kinds.MINIMUM))
    one_point_zero = add_tensor(model, graph.tensors[clamps[0].inputs[0]], b"one", [1])
    fill_(model, one_point_zero, np.ones(1, dtype=np.float32))
    for clamp in clamps:
        between = add_tensor(model, graph.tensors[clamp.outputs[0]], b"not negative %d" % clamp.outputs[0])
        rest = copy.copy(clamp)
        rest.opcodeIndex, rest.inputs = minimum, [between, one_point_zero]
        clamp.opcodeIndex, clamp.outputs = relu, [between]
        place = next(i for i, other in enumerate(graph.operators) if other is clamp)
        graph.operators.insert(place + 1, rest)
    return len(clamps)


def _kept(order: NDArray[np.int32], axes: NDArray[np.int32]) -> list[int]:
    """Returns which axes of the transpose's input remain, in the order the mean's output has them.

    None remain where the order is not known.
    """
    gone = {int(axis) % len(order) for axis in axes} if len(order) else set()
    return [int(axis) for position, axis in enumerate(order) if position not in gone]
