"""Where the layers of a network are in an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgecompress.core.types import Layer, Op, Size
from edgecompress.latency.onnx_chain import Map
from edgecompress.latency.onnx_graph import onnx
from edgecompress.latency.signatures import Signature, assign, layer_signature, signature

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A node that multiplies by weights."""

    node: NodeProto
    signature: Signature
    names: frozenset[str]
    """Layers it may be of, by its own name and those of its constants."""
    source: Map
    biased: bool
    int8: bool
    op: Op
    tokens: int
    """Or pixels of its output."""
    merged: str | None = None
    """Equal for linear layers a simplifier has made one of, since they read the same."""


def assigned(
    places: Sequence[Place], wanted: Sequence[Layer], layers: Sequence[Layer], file: str
) -> list[Place]:
    """Returns the place of each wanted layer: by name, or else by shapes in the order they run.

    Raises:
        ExportError: there is no place for a layer.
    """
    named = {name: place for place in places for name in place.names}
    found: dict[str, Place] = {}
    for layer in wanted:
        place = named.get(layer.name)
        if place is not None and place.signature == layer_signature(layer):
            found[layer.name] = place
    taken = {id(place) for place in found.values()}
    free = [(place.signature, place) for place in places if id(place) not in taken]
    rest = [layer for layer in wanted if layer.name not in found]
    others = dict(zip((layer.name for layer in rest), assign(rest, layers, free, file), strict=True))
    return [(found | others)[layer.name] for layer in wanted]


def find_places(model: ModelProto) -> list[Place]:
    """Returns every place a layer may be at, in the order they run."""
    return list(_places(_Shapes(model)))


class _Shapes:
    """A graph with the shapes of what it computes and of its constants."""

    def __init__(self, model: ModelProto) -> None:
        self.graph: GraphProto = model.graph
        lacking = len(model.graph.value_info) < len(model.graph.node) // 4  # int8: of some nodes only
        known = onnx().shape_inference.infer_shapes(model).graph if lacking else model.graph
        self.maps = {
            one.name: tuple(axis.dim_value for axis in one.type.tensor_type.shape.dim)
            for one in (*known.input, *known.value_info, *known.output)
        }
        self.constants: dict[str, tuple[str, Shape]] = {
            one.name: (one.name, tuple(one.dims)) for one in self.graph.initializer
        }
        self.read_back = {
            node.output[0]: node.input[0] for node in self.graph.node if node.op_type == "DequantizeLinear"
        }

        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def only_reader(self, name: str) -> NodeProto | None:
        """Returns the one node that reads a map, also as int8; None where there are none or several."""
        readers = self.readers.get(name, [])
        if len(readers) == 1 and readers[0].op_type in ("QuantizeLinear", "DequantizeLinear"):
            return self.only_reader(readers[0].output[0])
        return readers[0] if len(readers) == 1 else None

    def constant(self, name: str) -> tuple[str, Shape] | None:
        """Returns the name and shape of a constant, also of one that is read from int8."""
        return self.constants.get(self.read_back.get(name, name))


def _places(shapes: _Shapes) -> Iterator[Place]:
    for node in shapes.graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.output[0] not in shapes.maps:
            continue
        weight = shapes.constant(node.input[1])
        if weight is not None and len(weight[1]) in (2, 4):
            place = _place(shapes, node, weight)
            yield from _parts(shapes, place) or [place]


def _place(shapes: _Shapes, node: NodeProto, weight: tuple[str, Shape]) -> Place:
    attributes = {one.name: onnx().helper.get_attribute_value(one) for one in node.attribute}
    transposed = bool(attributes.get("transB", 0))
    output = shapes.maps[node.output[0]]
    op, out = _conv(weight[1], attributes, output)
    if node.op_type != "Conv":
        inputs, outputs = reversed(weight[1]) if transposed else weight[1]
        op, out = Op(kind="linear", inputs=inputs, outputs=outputs), (math.prod(output[:-1]), 1)
    source = Map(node.input[0], flat=len(output) == 2, transposed=transposed)
    bias = shapes.constant(node.input[2]) if len(node.input) > 2 else None
    names = [node.name.rpartition("/")[0], _layer_of(weight[0])]
    names += [_layer_of(bias[0])] if bias else []
    int8 = node.input[1] in shapes.read_back
    tokens = out[0] * out[1]
    layer_names = frozenset(names) - {""}
    return Place(node, signature(op, out), layer_names, source, bias is not None, int8, op, tokens)


def _parts(shapes: _Shapes, whole: Place) -> list[Place]:
    """Returns the layers of a product whose result is split and given a bias each."""
    split = shapes.only_reader(whole.node.output[0])
    if whole.node.op_type != "MatMul" or split is None or split.op_type != "Split":
        return []
    if len(shapes.maps[whole.node.output[0]]) != 3:
        return []
    places = []
    for output in split.output:
        end = shapes.only_reader(output)
        bias = None if end is None else next(filter(None, map(shapes.constant, end.input)), None)
        if end is None or end.op_type != "Add" or bias is None or end.output[0] not in shapes.maps:
            return []
        op = Op(kind="linear", inputs=whole.op.inputs, outputs=shapes.maps[end.output[0]][-1])
        names = frozenset({_layer_of(bias[0]), end.name.rpartition("/")[0]}) - {""}
        part = replace(whole, node=end, signature=signature(op, (whole.tokens, 1)), names=names, op=op)
        places.append(replace(part, biased=True, merged=whole.node.output[0]))
    return places


def _conv(weight: Shape, attributes: dict[str, tuple[int, ...]], output: Shape) -> tuple[Op, Size]:
    outputs, inputs, *kernel = weight if len(weight) == 4 else (*weight, 1, 1)
    groups = int(attributes.get("group", 1))  # type: ignore[arg-type]
    op = Op(
        kind="conv2d",
        inputs=inputs * groups,
        outputs=outputs,
        kernel=(kernel[0], kernel[1]),
        stride=_two(attributes.get("strides")),
        dilation=_two(attributes.get("dilations")),
        groups=groups,
    )
    return op, (output[-2], output[-1])


def _two(values: tuple[int, ...] | None) -> Size:
    return (1, 1) if values is None else (values[0], values[1])


def _layer_of(constant: str) -> str:
    """Returns the layer a constant belongs to by its name, as `stage1.0.conv1.weight`; empty: none."""
    layer, _, last = constant.removesuffix("_quantized").rpartition(".")
    return layer if last in ("weight", "bias") else ""
