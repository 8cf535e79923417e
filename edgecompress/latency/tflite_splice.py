"""Networks of plans as TFLite files, made from the file of the dense network in well under a second.

The operator of every layer that changes is replaced by those of its block, with random weights. What comes
out runs as long as a real export of the plan, which takes a converter half a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompress.core.types import Block, Layer, Op, Size
from edgecompress.errors import ExportError
from edgecompress.latency.signatures import Signature, assign, signature
from edgecompress.latency.tflite_chain import (
    LITERT_TORCH,
    ONNX2TF,
    SAME,
    VALID,
    WEIGHTED,
    End,
    Style,
    write_block_ops,
    write_pad,
)
from edgecompress.latency.tflite_graph import Graph, read_graph


def splice(
    dense: Path,
    changes: Sequence[tuple[Layer, Block]],
    target: Path,
    *,
    layers: Iterable[Layer] = (),
    seed: int = 0,
) -> None:
    """Writes the dense network's file with blocks in place of layers.

    Layers are found by their shapes, in the order they run. `layers`, all of the network's in forward order,
    tell equal ones apart; without them the first that fits is taken, which makes no difference to the time.

    Raises:
        ExportError: the dense file cannot be read, or nothing in it fits a layer.
        MissingPackage: ai-edge-litert is not installed.
        ArtefactError: the file cannot be written.
    """
    graph = read_graph(dense, seed=seed)
    found = [(place.signature, place) for place in _places(graph)]
    places = assign([layer for layer, _ in changes], layers, found, dense.name)
    style, spliced = _style(graph), {}
    for (layer, block), place in zip(changes, places, strict=True):
        graph.added = []
        _write(graph, place, layer, block, style)
        spliced[id(place.operator)] = graph.added
    operators = graph.main.operators
    graph.main.operators = [new for old in operators for new in spliced.get(id(old), [old])]
    _drop_idle_pads_(graph)
    graph.write(target)


@dataclass(frozen=True)
class _Place:
    """An operator that multiplies by weights."""

    operator: Any
    signature: Signature
    linear: bool
    pad: Any
    """The operator that puts zeros around its input; None where there is none."""


def _places(graph: Graph) -> Iterator[_Place]:
    made_by = {int(operator.outputs[0]): operator for operator in graph.main.operators}
    kinds = graph.schema.BuiltinOperator
    for operator in graph.main.operators:
        kind = graph.kind(operator)
        if kind not in (kinds.CONV_2D, kinds.DEPTHWISE_CONV_2D, kinds.FULLY_CONNECTED):
            continue
        source, linear = int(operator.inputs[0]), kind == kinds.FULLY_CONNECTED
        op, out = _linear(graph, operator) if linear else _conv(graph, operator)
        before = made_by.get(source)
        padded = before is not None and graph.kind(before) == kinds.PAD and not linear
        yield _Place(operator, signature(op, out), linear, before if padded else None)


def _linear(graph: Graph, operator: Any) -> tuple[Op, Size]:  # noqa: ANN401  generated, without types
    outputs, inputs = graph.shape(int(operator.inputs[1]))
    tokens = 1
    for axis in graph.shape(int(operator.outputs[0]))[:-1]:
        tokens *= axis
    return Op(kind="linear", inputs=inputs, outputs=outputs), (tokens, 1)


def _conv(graph: Graph, operator: Any) -> tuple[Op, Size]:  # noqa: ANN401
    channels = graph.shape(int(operator.inputs[0]))[3]
    first, *kernel, last = graph.shape(int(operator.inputs[1]))
    depthwise = graph.kind(operator) == graph.schema.BuiltinOperator.DEPTHWISE_CONV_2D
    options = operator.builtinOptions
    op = Op(
        kind="conv2d",
        inputs=channels,
        outputs=last if depthwise else first,
        kernel=(kernel[0], kernel[1]),
        stride=(options.strideH, options.strideW),
        dilation=(options.dilationHFactor, options.dilationWFactor),
        groups=channels if depthwise else channels // last,
    )
    _, height, width, _ = graph.shape(int(operator.outputs[0]))
    return op, (height, width)


def _style(graph: Graph) -> Style:
    """Returns how the file's converter writes things, told by a 1 x 1 convolution or a linear layer."""
    kinds = graph.schema.BuiltinOperator
    for operator in graph.main.operators:
        options = operator.builtinOptions
        if graph.kind(operator) == kinds.CONV_2D and graph.shape(int(operator.inputs[1]))[1:3] == (1, 1):
            if (options.strideH, options.strideW) == (1, 1):
                return ONNX2TF if options.padding == SAME else LITERT_TORCH
        elif graph.kind(operator) == kinds.FULLY_CONNECTED and len(graph.shape(int(operator.inputs[0]))) == 2:
            return LITERT_TORCH if options.keepNumDims else ONNX2TF
    return ONNX2TF


def _write(graph: Graph, place: _Place, layer: Layer, block: Block, style: Style) -> None:
    """Adds the operators of a block that reads what the layer read and writes where it wrote."""
    operator = place.operator
    end = End(int(operator.outputs[0]), operator.builtinOptions.fusedActivationFunction)
    source, size = int(operator.inputs[0]), layer.in_size
    if place.linear:
        block = _with_kind(block, "linear")
    else:
        block = _with_kind(block, "conv2d")
        source, size = _padded_source(graph, place, layer)
    write_block_ops(graph, block, source, size, end, style)


def _with_kind(block: Block, kind: str) -> Block:
    """Returns a block with 1 x 1 convolutions as linear layers, or the other way round."""
    branches = [
        tuple(op.model_copy(update={"kind": kind}) if op.kind in WEIGHTED else op for op in ops)
        for ops in block.branches
    ]
    return Block(branches=tuple(branches))


def _padded_source(graph: Graph, place: _Place, layer: Layer) -> tuple[int, Size]:
    """Returns the map the layer reads and its size; zeros a converter has built in are written out."""
    own = int(place.operator.inputs[0])
    maps = [own] if place.pad is None else [int(place.pad.inputs[0]), own]
    for tensor in maps:
        height, width = graph.shape(tensor)[1:3]
        if layer.op.kind == "linear" or (height, width) == layer.in_size:
            return tensor, (height, width)
    height, width = graph.shape(own)[1:3]
    lacking = layer.in_size[0] - height, layer.in_size[1] - width
    if min(lacking) < 0 or place.operator.builtinOptions.padding == VALID:
        raise ExportError(
            f"layer {layer.name!r}: reads a map of {height}x{width}, not {layer.in_size[0]}x"
            f"{layer.in_size[1]}; the file is of another network"
        )
    rows, columns = ((amount // 2, amount - amount // 2) for amount in lacking)
    return write_pad(graph, own, rows, columns), layer.in_size


def _drop_idle_pads_(graph: Graph) -> None:
    """Takes out operators that put zeros around a map nothing reads any more."""
    main, pad = graph.main, graph.schema.BuiltinOperator.PAD
    read = {int(tensor) for operator in main.operators for tensor in operator.inputs}
    read |= {int(tensor) for tensor in main.outputs}
    main.operators = [one for one in main.operators if graph.kind(one) != pad or int(one.outputs[0]) in read]
