"""Networks of plans as ONNX files, made from the file of the dense network in well under a second.

The node of every layer that changes is replaced by those of its block, with random weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from edgecompress.core.store import replacing
from edgecompress.core.types import Block, Layer
from edgecompress.errors import ExportError
from edgecompress.latency.onnx_chain import write_block_ops
from edgecompress.latency.onnx_graph import Nodes, onnx
from edgecompress.latency.onnx_places import Place, assigned, find_places

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


def splice(
    dense: Path,
    changes: Sequence[tuple[Layer, Block]],
    target: Path,
    *,
    layers: Iterable[Layer] = (),
    seed: int = 0,
) -> None:
    """Writes the dense network's file with blocks in place of layers.

    Layers are found by the names our exporter keeps, or else by their shapes in the order they run.
    `layers`, all of the network's in forward order, tell equal ones apart there.

    Raises:
        ExportError: the dense file cannot be read, or nothing in it fits a layer.
        MissingPackage: onnx is not installed.
        ArtefactError: the file cannot be written.
    """
    model = _read(dense)
    places = find_places(model)
    taken = assigned(places, [layer for layer, _ in changes], tuple(layers), dense.name)
    todo = [(place, layer.name, block) for place, (layer, block) in zip(taken, changes, strict=True)]
    spliced: dict[str, list[NodeProto]] = {}
    for number, (place, name, block) in enumerate((*todo, *_parted(places, taken))):
        nodes = _block(place, name, block, seed + number)
        spliced[place.node.output[0]] = nodes.nodes
        model.graph.initializer.extend(nodes.constants)
    _replace_(model.graph, [new for old in model.graph.node for new in spliced.get(old.output[0], [old])])
    with replacing(target) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))


def _parted(places: Sequence[Place], taken: Sequence[Place]) -> Iterator[tuple[Place, str, Block]]:
    """Yields the layers that were one with a layer that changes: they come to stand by themselves."""
    broken = {place.merged for place in taken} - {None}
    gone = {id(place) for place in taken}
    for place in places:
        if place.merged in broken and id(place) not in gone:
            yield place, place.node.output[0], Block(branches=((place.op,),))


def _read(file: Path) -> ModelProto:
    decode_error = import_module("google.protobuf.message").DecodeError
    try:
        return cast("ModelProto", onnx().load(file, load_external_data=False))
    except FileNotFoundError:
        raise ExportError(f"{file}: there is no such file; export it first") from None
    except OSError as error:
        raise ExportError(f"{file}: cannot be read: {error.strerror or error}") from None
    except decode_error:
        raise ExportError(f"{file}: not an ONNX file, or a part is missing; export it again") from None


def _block(place: Place, name: str, block: Block, seed: int) -> Nodes:
    """Returns the nodes of a block that reads what the layer read and writes where it wrote."""
    nodes = Nodes(f"{name}/block", int8=place.int8, seed=seed)
    result = write_block_ops(nodes, block, place.source, place.tokens, biased=place.biased)
    nodes.rename(result, place.node.output[0])
    return nodes


def _replace_(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """Leaves those of these nodes in a graph whose results are read, and the constants they read."""
    kept, read = [], {one.name for one in graph.output}
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            kept.append(node)
            read.update(node.input)
    constants = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept[::-1])
    graph.initializer.extend(constants)
