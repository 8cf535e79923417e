"""What all searched cells have in common: nodes that add up what lies on their edges.

On the edges of a search network lie all operations, weighted by probabilities that are given with every call;
on those of a derived network lies one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from edgecompress.core.genotype import NONE
from edgecompress.nets.cell_operations import make_operation

Pairs = tuple[tuple[int, int], ...]
"""Edges as (state that is read, node that reads it), node by node."""


@dataclass(frozen=True)
class Wiring:
    """The edges of one kind of cells, and what to put on them."""

    pairs: Pairs
    make: Callable[[int, int, int], nn.Module]
    """Gets the number of an edge, its channels and its stride."""


@dataclass(frozen=True)
class Stack:
    """How cells are stacked to a network."""

    channels: int
    cells: int
    image_channels: int
    classes: int
    affine: bool
    """Whether batch norms have scales and shifts."""


class Mixed(nn.Module):
    """All operations of an edge; `none` adds nothing and has no module."""

    def __init__(self, names: Sequence[str], channels: int, stride: int) -> None:
        super().__init__()
        self.places = [place for place, name in enumerate(names) if name != NONE]
        made = (make_operation(names[place], channels, stride=stride, affine=False) for place in self.places)
        self.operations = nn.ModuleList(made)

    def forward(self, x: Tensor, probabilities: Tensor) -> Tensor:
        """Returns the sum of what all operations make of a map, each times its probability."""
        parts = zip(self.places, self.operations, strict=True)
        return added([probabilities[place] * operation(x) for place, operation in parts])


class CellGraph(nn.Module):
    """The edges of a cell."""

    def __init__(self, wiring: Wiring, channels: int, *, strided_states: int = 0) -> None:
        """Edges from the first `strided_states` states have stride 2."""
        super().__init__()
        self.pairs = wiring.pairs
        strides = [2 if state < strided_states else 1 for state, _ in wiring.pairs]
        made = (wiring.make(number, channels, stride) for number, stride in enumerate(strides))
        self.edges = nn.ModuleList(made)

    def forward(self, inputs: Sequence[Tensor], probabilities: Tensor | None = None) -> list[Tensor]:
        """Returns all states: inputs, then nodes; a search gives probabilities (edges, operations)."""
        states = list(inputs)
        for node in range(1 + self.pairs[-1][1]):
            numbers = [number for number, (_, reader) in enumerate(self.pairs) if reader == node]
            states.append(added([self._read(number, states, probabilities) for number in numbers]))
        return states

    def _read(self, number: int, states: list[Tensor], probabilities: Tensor | None) -> Tensor:
        weights = () if probabilities is None else (probabilities[number],)
        found: Tensor = self.edges[number](states[self.pairs[number][0]], *weights)
        return found


def added(parts: Sequence[Tensor]) -> Tensor:
    """Returns the sum of tensors."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
