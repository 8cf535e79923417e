"""From probabilities to a cell: which operation stays on which edge."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from edgecompress.core.genotype import KEPT_EDGES, NODES, NONE, SKIP, Cell, Edge, edges_of

Rows = list[list[float]]
"""Probabilities by edge and operation; a negative one is not allowed."""


def select_cell(
    space: str,
    operations: Sequence[str],
    probabilities: Tensor,
    *,
    max_skips: int | None = None,
    without_none: bool = False,
) -> Cell:
    """Returns the cell of the most probable operations; of equals the first one.

    In the darts space a node keeps the two edges whose best operations are most probable, and `none` is no
    choice; with `without_none` it is none in any space. Where more than `max_skips` edges would be skip
    connections, the least probable of them takes its next best operation, until there are few enough.
    """
    rows: Rows = probabilities.tolist()
    if (space == "darts" or without_none) and NONE in operations:
        for row in rows:
            row[operations.index(NONE)] = -1.0
    while True:
        kept = _kept(space, rows)
        skips = [number for number, place in kept.items() if operations[place] == SKIP]
        if max_skips is None or len(skips) <= max_skips:
            return _cell(space, operations, kept)
        place = operations.index(SKIP)
        weakest = min(skips, key=lambda number: (rows[number][place], -number))
        rows[weakest][place] = -1.0


def _kept(space: str, rows: Rows) -> dict[int, int]:
    """Returns the edges that stay by number, each with the place of its operation."""
    best = [max(range(len(row)), key=lambda place: (row[place], -place)) for row in rows]
    kept: dict[int, int] = {}
    for node in range(NODES[space]):
        numbers = [number for number, (_, reader) in enumerate(edges_of(space)) if reader == node]
        ranked = sorted(numbers, key=lambda number: (-rows[number][best[number]], number))
        stay = ranked[:KEPT_EDGES] if space == "darts" else ranked
        kept |= {number: best[number] for number in sorted(stay)}
    return kept


def _cell(space: str, operations: Sequence[str], kept: dict[int, int]) -> Cell:
    nodes: list[list[Edge]] = [[] for _ in range(NODES[space])]
    for number, place in kept.items():
        state, node = edges_of(space)[number]
        nodes[node].append(Edge(state=state, operation=operations[place]))
    return Cell(nodes=tuple(map(tuple, nodes)))
