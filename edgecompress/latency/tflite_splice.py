"""Networks of plans as TFLite files, made from the file of the dense network in well under a second.

The operator of every layer that changes is replaced by those of its block, with random weights. What comes
out runs as long as a real export of the plan, which takes a converter half a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edgecompress.core.types import Block, Layer, Size
from edgecompress.errors import ExportError
from edgecompress.latency.signatures import assign
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
from edgecompress.latency.tflite_norms import unfold_norms_
from edgecompress.latency.tflite_places import Place, find_places


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
    places = list(find_places(graph))
    found = [(place.signature, place) for place in places]
    taken = assign([layer for layer, _ in changes], layers, found, dense.name)
    style, spliced = _style(graph), {}
    todo = [(place, block, layer) for place, (layer, block) in zip(taken, changes, strict=True)]
    for place, block, layer in (*todo, *_parted(places, taken)):
        graph.added = []
        _write(graph, place, block, layer, style)
        spliced[id(place.operator)] = graph.added
    operators = graph.main.operators
    graph.main.operators = [new for old in operators for new in spliced.get(id(old), [old])]
    unfold_norms_(graph, {place.source for place, block, _ in todo if place.linear and _is_chain(block)})
    _drop_idle_(graph)
    graph.write(target)


def _parted(places: Sequence[Place], taken: Sequence[Place]) -> Iterator[tuple[Place, Block, Layer]]:
    """Yields the layers that were one with a layer that changes: they come to stand by themselves."""
    broken = {place.merged for place in taken} - {None}
    gone = {id(place) for place in taken}
    for place in places:
        if place.merged in broken and id(place) not in gone:
            yield place, Block(branches=((place.op,),)), Layer(name="", op=place.op, in_size=(1, 1))


def _is_chain(block: Block) -> bool:
    return any(len(ops) > 1 for ops in block.branches)


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


def _write(graph: Graph, place: Place, block: Block, layer: Layer, style: Style) -> None:
    """Adds the operators of a block that reads what the layer read and writes where it wrote."""
    block = _with_kind(block, "linear" if place.linear else "conv2d")
    source, size = place.source, layer.in_size
    if not place.linear:
        source, size = _padded_source(graph, place, layer)
    write_block_ops(graph, block, source, size, End(place.output, place.activation), style)


def _with_kind(block: Block, kind: str) -> Block:
    """Returns a block with 1 x 1 convolutions as linear layers, or the other way round."""
    branches = [
        tuple(op.model_copy(update={"kind": kind}) if op.kind in WEIGHTED else op for op in ops)
        for ops in block.branches
    ]
    return Block(branches=tuple(branches))


def _padded_source(graph: Graph, place: Place, layer: Layer) -> tuple[int, Size]:
    """Returns the map the layer reads and its size; zeros a converter has built in are written out."""
    maps = [place.source] if place.pad is None else [int(place.pad.inputs[0]), place.source]
    for tensor in maps:
        height, width = graph.shape(tensor)[1:3]
        if layer.op.kind == "linear" or (height, width) == layer.in_size:
            return tensor, (height, width)
    height, width = graph.shape(place.source)[1:3]
    lacking = layer.in_size[0] - height, layer.in_size[1] - width
    if min(lacking) < 0 or place.operator.builtinOptions.padding == VALID:
        raise ExportError(
            f"layer {layer.name!r}: reads a map of {height}x{width}, not {layer.in_size[0]}x"
            f"{layer.in_size[1]}; the file is of another network"
        )
    rows, columns = ((amount // 2, amount - amount // 2) for amount in lacking)
    return write_pad(graph, place.source, rows, columns), layer.in_size


def _drop_idle_(graph: Graph) -> None:
    """Takes out operators whose results nothing reads any more."""
    main, kept = graph.main, []
    read = {int(tensor) for tensor in main.outputs}
    for operator in reversed(main.operators):
        if any(int(tensor) in read for tensor in operator.outputs):
            kept.append(operator)
            read |= {int(tensor) for tensor in operator.inputs}
    main.operators = kept[::-1]
