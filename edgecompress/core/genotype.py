"""A network made of searched cells: which operations connect the states of a cell, and how cells are stacked.

A cell has states; each node adds up what operations make of earlier states. Spaces differ in their operations
and in how many states a cell reads:

    darts   two inputs, four nodes that read two states each, and a cell for each of two kinds
    nats    one input, three nodes that read every earlier state
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from edgecompress.core.types import Channels, ClassCount, Record, Side
from edgecompress.errors import ConfigError

SpaceName = Literal["darts", "nats"]

NONE, SKIP = "none", "skip"

OPERATIONS: dict[str, tuple[str, ...]] = {
    "darts": (NONE, "max3", "avg3", SKIP, "sep3", "sep5", "dil3", "dil5"),
    "nats": (NONE, SKIP, "conv1", "conv3", "avg3"),
}
"""In the order of scores; a figure is the size of a pool, or of a separable, dilated or plain convolution."""
INPUTS = {"darts": 2, "nats": 1}
"""States a cell is given."""
NODES = {"darts": 4, "nats": 3}
KINDS: dict[str, tuple[str, ...]] = {"darts": ("normal", "reduction"), "nats": ("normal",)}
"""Kinds of cells that have scores of their own."""
MOST_CHANNELS, MOST_CELLS = 512, 100
"""Several times what was ever published: a file must not ask for more memory than there is."""
KEPT_EDGES = 2
"""A node of the darts space reads so many states."""


def edges_of(space: str) -> tuple[tuple[int, int], ...]:
    """Returns all edges of a cell as (state that is read, node that reads it), node by node."""
    first = INPUTS[space]
    return tuple((state, node) for node in range(NODES[space]) for state in range(first + node))


class Edge(Record):
    """What a node reads, and what becomes of it on the way."""

    state: int = Field(ge=0)
    """Inputs of the cell come first, then the nodes."""
    operation: str


class Cell(Record):
    """The edges into each node, in the order of states."""

    nodes: tuple[tuple[Edge, ...], ...]

    def edges(self) -> Iterator[tuple[int, Edge]]:
        """Yields every edge with the node it leads to."""
        for node, edges in enumerate(self.nodes):
            yield from ((node, edge) for edge in edges)


class Genotype(Record):
    """A network of cells; everything needed to build it. `genotype.json`."""

    format_version: Literal[1] = 1
    space: SpaceName
    channels: int = Field(ge=1, le=MOST_CHANNELS)
    """Of the first cells; every reduction doubles them."""
    cells: int = Field(ge=3, le=MOST_CELLS)
    """In all."""
    image: tuple[Channels, Side, Side]
    """Channels, height and width of the images it was searched for."""
    classes: ClassCount
    normal: Cell
    reduction: Cell | None = None
    """None where reductions are not searched."""

    @model_validator(mode="after")
    def _fits_space(self) -> Genotype:
        check_stack(self.space, self.cells)
        if (self.reduction is None) == ("reduction" in KINDS[self.space]):
            raise ValueError(f"space {self.space} has {len(KINDS[self.space])} kinds of cells")
        for cell in self.kinds():
            _check_cell(self.space, cell)
        return self

    def kinds(self) -> tuple[Cell, ...]:
        """Returns the cells in the order of `KINDS`."""
        return (self.normal,) if self.reduction is None else (self.normal, self.reduction)

    @property
    def lets_through(self) -> bool:
        """Whether what a cell makes depends on what it is given; `none` on every way cuts it off."""
        reached = set(range(INPUTS[self.space]))
        for node, edge in self.normal.edges():
            if edge.operation != NONE and edge.state in reached:
                reached.add(INPUTS[self.space] + node)
        return INPUTS[self.space] + NODES[self.space] - 1 in reached

    @property
    def skip_ratio(self) -> float:
        """Share of edges that are skip connections."""
        found = [edge.operation == SKIP for cell in self.kinds() for _, edge in cell.edges()]
        return sum(found) / len(found)


def node_words(cell: Cell, inputs: int) -> list[str]:
    """Returns what each node adds up, as `sep3 of input 1 + skip of node 2`."""

    def state(number: int) -> str:
        own = number >= inputs
        return f"node {number - inputs + 1}" if own else f"input {number + 1}" if inputs > 1 else "input"

    return [" + ".join(f"{one.operation} of {state(one.state)}" for one in edges) for edges in cell.nodes]


def check_space(name: str) -> SpaceName:
    """Returns the name of a space.

    Raises:
        ConfigError: there is no such space.
    """
    known: dict[str, SpaceName] = {"darts": "darts", "nats": "nats"}
    if name not in known:
        raise ConfigError(f"space {name!r} is not known; known are: {', '.join(known)}")
    return known[name]


def check_stack(space: str, cells: int) -> None:
    """Does nothing where so many cells can be stacked.

    Raises:
        ValueError: they cannot.
    """
    if cells < 3:
        raise ValueError(f"{cells} cells are too few; take at least 3")
    if space == "nats" and cells % 3:
        raise ValueError(f"{cells} cells do not fill three equal stages; take 3, 6, 9, ...")


def _check_cell(space: str, cell: Cell) -> None:
    if len(cell.nodes) != NODES[space]:
        raise ValueError(f"a cell of {space} has {NODES[space]} nodes, not {len(cell.nodes)}")
    for node, edges in enumerate(cell.nodes):
        states = [edge.state for edge in edges]
        available = INPUTS[space] + node
        wanted = KEPT_EDGES if space == "darts" else available
        if len(states) != wanted or states != sorted(set(states)) or states[-1] >= available:
            raise ValueError(f"node {node} reads states {states}, not {wanted} of 0 to {available - 1}")
        for edge in edges:
            _check_operation(space, edge.operation)


def _check_operation(space: str, name: str) -> None:
    allowed = [one for one in OPERATIONS[space] if one != NONE or space == "nats"]
    if name not in allowed:
        raise ValueError(f"operation {name!r} is not one of {', '.join(allowed)}")


# Text


_COUNT = r"([0-9]{1,9})"
_CODE = re.compile(
    rf"(darts|nats)-c{_COUNT}-n{_COUNT}-{_COUNT}x{_COUNT}x{_COUNT}-k{_COUNT}"
    r"-([a-z0-9.,_]+)(?:-([a-z0-9.,_]+))?"
)
_SHOWN = 120
"""Characters of a text that is no code."""


def code_of(genotype: Genotype) -> str:
    """Returns a genotype as one word: `nats-c8-n3-1x28x28-k10-conv3.0,skip.0_...`.

    Edges are `operation.state`, edges of a node are joined by commas and nodes by underscores.
    """
    image = "x".join(map(str, genotype.image))
    head = f"{genotype.space}-c{genotype.channels}-n{genotype.cells}-{image}-k{genotype.classes}"
    return "-".join([head, *map(_cell_code, genotype.kinds())])


def parse_code(text: str) -> Genotype:
    """Reads what `code_of` wrote.

    Raises:
        ConfigError: it is something else.
    """
    match = _CODE.fullmatch(text)
    if match is None:
        shown = repr(text[:_SHOWN])
        raise ConfigError(f"cells {shown}: neither the code of a network of cells nor a .json file")
    channels, cells, images, height, width, classes = map(int, match.groups()[1:7])
    try:
        return Genotype.model_validate(
            {
                "space": match[1],
                "channels": channels,
                "cells": cells,
                "image": (images, height, width),
                "classes": classes,
                "normal": _parse_cell(match[8]),
                "reduction": None if match[9] is None else _parse_cell(match[9]),
            }
        )
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"cells {text[:_SHOWN]!r}: {said}") from None


def _cell_code(cell: Cell) -> str:
    return "_".join(",".join(f"{edge.operation}.{edge.state}" for edge in edges) for edges in cell.nodes)


def _parse_cell(text: str) -> dict[str, list[list[dict[str, object]]]]:
    def edge(word: str) -> dict[str, object]:
        operation, _, state = word.partition(".")
        return {"operation": operation, "state": state}

    return {"nodes": [[edge(word) for word in node.split(",")] for node in text.split("_")]}


def chosen_operations(space: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the operations to search among, in the order of the space; no names are all.

    Raises:
        ConfigError: one is not of the space, or there is no choice left.
    """
    unknown = sorted(set(names) - set(OPERATIONS[space]))
    if unknown:
        known = ", ".join(OPERATIONS[space])
        raise ConfigError(f"operation {unknown[0]!r}: space {space} has none of that name; it has: {known}")
    chosen = tuple(one for one in OPERATIONS[space] if not names or one in names)
    if len([one for one in chosen if one != NONE]) < 2:
        raise ConfigError(f"operations {', '.join(chosen)}: leave no choice; give at least two beside none")
    return chosen
