"""The darts space (Liu, Simonyan and Yang, 2019): cells that read the two cells before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from edgecompress.core.genotype import KINDS, NODES
from edgecompress.nets.cell_edges import CellGraph, Stack, Wiring
from edgecompress.nets.cell_operations import HalvingSkip, relu_conv

STEM = 3
"""The stem has so many times the channels of the first cell."""


class DartsCell(nn.Module):
    """Two inputs, brought to the same shape; the output are all nodes side by side."""

    def __init__(self, first: nn.Module, second: nn.Module, graph: CellGraph) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.graph = graph

    def forward(self, before: Tensor, last: Tensor, probabilities: Tensor | None = None) -> Tensor:
        """Returns the map of this cell from those of the two cells before it."""
        states = self.graph([self.first(before), self.second(last)], probabilities)
        return torch.cat(states[2:], dim=1)


class DartsNetwork(nn.Module):
    """A stem, cells of which those after one and two thirds halve the map, and a linear classifier."""

    def __init__(self, stack: Stack, wirings: Mapping[str, Wiring]) -> None:
        super().__init__()
        width = STEM * stack.channels
        stem = nn.Conv2d(stack.image_channels, width, 3, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(width))
        self.kinds = [int(is_reduction(number, stack.cells)) for number in range(stack.cells)]
        self.cells = nn.ModuleList()
        inputs, channels, halved = (width, width), stack.channels, False
        for reduces in map(bool, self.kinds):
            channels *= 2 if reduces else 1
            wiring = wirings[KINDS["darts"][reduces]]
            graph = CellGraph(wiring, channels, strided_states=2 if reduces else 0)
            self.cells.append(_cell(inputs, channels, graph, halved=halved, affine=stack.affine))
            inputs, halved = (inputs[1], NODES["darts"] * channels), reduces
        self.head = nn.Linear(inputs[1], stack.classes)

    def forward(self, x: Tensor, probabilities: Sequence[Tensor] | None = None) -> Tensor:
        """Returns the logits; a search gives probabilities for the normal and for the reduction cells."""
        before = last = self.stem(x)
        for kind, cell in zip(self.kinds, self.cells, strict=True):
            weights = None if probabilities is None else probabilities[kind]
            before, last = last, cell(before, last, weights)
        logits: Tensor = self.head(last.mean((2, 3)))
        return logits


def is_reduction(number: int, cells: int) -> bool:
    """Tells whether a cell halves the map."""
    return number in (cells // 3, 2 * cells // 3)


def _cell(
    inputs: tuple[int, int], channels: int, graph: CellGraph, *, halved: bool, affine: bool
) -> DartsCell:
    """Returns a cell; `halved`: the cell before it was a reduction, so its first input is twice as large."""
    first: nn.Module = relu_conv(inputs[0], channels, 1, affine=affine)
    if halved:
        first = HalvingSkip(inputs[0], channels, affine=affine)
    return DartsCell(first, relu_conv(inputs[1], channels, 1, affine=affine), graph)
