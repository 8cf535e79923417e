"""The topology space of NATS-Bench (Dong et al., 2021): one cell of four states, in three stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from edgecompress.nets.cell_edges import CellGraph, Stack, Wiring
from edgecompress.nets.cell_operations import relu_conv

STAGES = 3


class NatsCell(nn.Module):
    """One input; the output is the last node."""

    def __init__(self, graph: CellGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, x: Tensor, probabilities: Tensor | None = None) -> Tensor:
        """Returns a map of the same shape."""
        last: Tensor = self.graph([x], probabilities)[-1]
        return last


class ResidualReduction(nn.Module):
    """Halves the map and doubles the channels; not searched."""

    def __init__(self, channels: int, *, affine: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            relu_conv(channels, 2 * channels, 3, stride=2, affine=affine),
            relu_conv(2 * channels, 2 * channels, 3, affine=affine),
        )
        # rounds odd sizes up, as the convolutions do
        pool = nn.AvgPool2d(2, stride=2, ceil_mode=True)
        self.shortcut = nn.Sequential(pool, nn.Conv2d(channels, 2 * channels, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum of two convolutions and a shortcut."""
        out: Tensor = self.body(x) + self.shortcut(x)
        return out


class NatsNetwork(nn.Module):
    """A stem, three stages of cells with C, 2C and 4C channels, and a linear classifier."""

    def __init__(self, stack: Stack, wirings: Mapping[str, Wiring]) -> None:
        super().__init__()
        stem = nn.Conv2d(stack.image_channels, stack.channels, 3, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(stack.channels))
        self.cells = nn.ModuleList()
        self.reductions = nn.ModuleList()
        channels, wiring = stack.channels, wirings["normal"]
        for stage in range(STAGES):
            if stage:
                self.reductions.append(ResidualReduction(channels, affine=stack.affine))
                channels *= 2
            own = (NatsCell(CellGraph(wiring, channels)) for _ in range(stack.cells // STAGES))
            self.cells.extend(own)
        self.last = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())
        self.head = nn.Linear(channels, stack.classes)

    def forward(self, x: Tensor, probabilities: Sequence[Tensor] | None = None) -> Tensor:
        """Returns the logits; a search gives the probabilities of its one kind of cells."""
        x = self.stem(x)
        weights = None if probabilities is None else probabilities[0]
        per_stage = len(self.cells) // STAGES
        for number, cell in enumerate(self.cells):
            if number and number % per_stage == 0:
                x = self.reductions[number // per_stage - 1](x)
            x = cell(x, weights)
        logits: Tensor = self.head(self.last(x).mean((2, 3)))
        return logits
