"""Builds networks of cells: the one that is searched, and the one a genotype describes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from torch import nn

from edgecompress.core.genotype import KINDS, NONE, Cell, Genotype, edges_of, parse_code
from edgecompress.core.store import read_record
from edgecompress.nets.cell_edges import CellGraph, Mixed, Stack, Wiring
from edgecompress.nets.cell_operations import make_operation
from edgecompress.nets.cells import DartsNetwork, is_reduction
from edgecompress.nets.nats_cell import NatsNetwork

_NETWORKS = {"darts": DartsNetwork, "nats": NatsNetwork}


def search_network(space: str, operations: Sequence[str], stack: Stack) -> nn.Module:
    """Returns the network with all of `operations` on all edges; call it with images and probabilities."""

    def make(number: int, channels: int, stride: int) -> nn.Module:
        return Mixed(operations, channels, stride)

    wiring = Wiring(edges_of(space), make)
    return _NETWORKS[space](stack, dict.fromkeys(KINDS[space], wiring))


def derived_network(genotype: Genotype, *, classes: int | None = None) -> nn.Module:
    """Returns the network of a genotype with random weights."""
    stack = Stack(
        genotype.channels, genotype.cells, genotype.image[0], classes or genotype.classes, affine=True
    )
    kinds = zip(KINDS[genotype.space], genotype.kinds(), strict=True)
    return _NETWORKS[genotype.space](stack, {kind: _wiring(cell) for kind, cell in kinds})


def _wiring(cell: Cell) -> Wiring:
    edges = list(cell.edges())

    def make(number: int, channels: int, stride: int) -> nn.Module:
        return make_operation(edges[number][1].operation, channels, stride=stride, affine=True)

    return Wiring(tuple((edge.state, node) for node, edge in edges), make)


def inherit_(network: nn.Module, searched: nn.Module, genotype: Genotype, operations: Sequence[str]) -> None:
    """Gives a derived network the weights its operations had in the search; scales and shifts stay."""
    outside = {name: tensor for name, tensor in searched.state_dict().items() if ".graph." not in name}
    network.load_state_dict(outside, strict=False)  # all but edges, scales and shifts
    kinds = cell_kinds(genotype.space, genotype.cells)
    for kind, own, other in zip(kinds, cell_graphs(network), cell_graphs(searched), strict=True):
        for number, (node, edge) in enumerate(genotype.kinds()[kind].edges()):
            mixed = cast(Mixed, other.edges[other.pairs.index((edge.state, node))])
            if edge.operation != NONE:
                source = mixed.operations[mixed.places.index(operations.index(edge.operation))]
                own.edges[number].load_state_dict(source.state_dict(), strict=False)


def cell_kinds(space: str, cells: int) -> list[int]:
    """Returns for each cell of a network which of `KINDS` it is."""
    return [int(space == "darts" and is_reduction(number, cells)) for number in range(cells)]


def cell_graphs(network: nn.Module) -> list[CellGraph]:
    """Returns the edges of every cell of a network."""
    return [module for module in network.modules() if isinstance(module, CellGraph)]


def read_genotype(text: str) -> Genotype:
    """Reads a genotype from its code or from a .json file.

    Raises:
        ConfigError: the text is neither.
        ArtefactError: the file is missing or damaged.
    """
    return read_record(Path(text), Genotype) if text.endswith(".json") else parse_code(text)
