"""What `edgecompress search` returns and writes: the plan it chose, the front, and what was measured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgecompress.core.measurement import Comparison, Milliseconds, Provenance
from edgecompress.core.results import LayerChange, ModelSummary, SplitSummary
from edgecompress.core.types import Metric, Plan, Record


class Slower(Record):
    """Blocks of one family that have fewer MACs than their layer and do not take less time."""

    layer: str
    family: str
    blocks: int
    """How many ranks of the family."""
    ranks: tuple[int, ...]
    """Of the one with the fewest MACs."""
    macs_share: float
    """Its MACs, of the layer's."""
    cost_share: float
    """Its time, of the layer's."""


class FrontPoint(Record):
    """A plan that no other beats by prediction."""

    cost: float
    """Predicted for the whole model, in the unit of the search."""
    share: float
    """Of the dense model's cost."""
    predicted_loss: float
    """Summed sensitivity; what the allocation minimises."""
    divergence: float | None
    """From the dense model's answers, on selection images, before any repair."""
    agreement: float | None
    """Share of selection images with the dense model's answer, before any repair."""
    choices: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Layer, family and ranks; layers not named stay dense."""


class Round(Record):
    """One turn of the loop: search, measure, correct."""

    number: int = Field(ge=1)
    limit_ms: float
    """What was searched for, so that the measured value meets the target."""
    predicted_ms: float
    measured_ms: Milliseconds
    file: Literal["spliced", "exported"]
    """Whether the plan was put into the exported dense network, or the final network was exported."""
    met: bool
    """Whether the measured value is within the target, or at most 3 % above it."""
    doubts: tuple[str, ...] = ()
    """Why the measured value is not valid; empty where it is."""

    @property
    def error(self) -> float:
        """How far the prediction was off, as a share of what was measured."""
        return self.predicted_ms / self.measured_ms - 1


class DeviceTime(Record):
    """What the table's device takes for one file, on the table's scale."""

    ms: Milliseconds
    doubts: tuple[str, ...] = ()
    """Why it is not valid; empty where it is."""


class Compared(Record):
    """Dense against compressed in turns, on the table's device."""

    comparison: Comparison
    doubts: tuple[str, ...] = ()
    """Why it is not valid; empty where it is."""


class LayerTime(Record):
    """Predicted milliseconds of one target layer, before and after."""

    name: str
    before_ms: float
    after_ms: float


class Latency(Record):
    """What the table promised and the device said."""

    table: str
    device: str
    provenance: Provenance
    dense_predicted_ms: float
    predicted_ms: float
    dense_measured_ms: float | None = None
    """On the table's scale; None where the device was not at hand."""
    measured_ms: float | None = None
    """Of the exported network."""
    rounds: tuple[Round, ...] = ()
    layers: tuple[LayerTime, ...] = ()
    comparison: Comparison | None = None
    """Dense against compressed in turns, on the table's device."""
    doubts: tuple[str, ...] = ()
    """Why what was measured of both networks is not valid; empty where it is."""
    not_measured: str | None = None
    """Why nothing was measured."""


class SearchResult(Record):
    """What `search` did. `search.json`."""

    schema_version: Literal[1] = 1
    run: str
    search: str
    """Which search."""
    metric: Metric
    target: float
    """The cost that was asked for, of the whole model."""
    max_drop: float | None = None
    """Percentage points that could be lost on the selection images, where that was the goal."""
    dense_cost: float
    """Predicted for the dense model, in the same unit."""
    cost: float
    """Predicted for the chosen plan."""
    met: bool
    reason: str | None
    """Why the target is not met."""
    plan: Plan
    dense: ModelSummary
    compressed: ModelSummary
    layers: tuple[LayerChange, ...]
    latency: Latency | None
    """None for a search in MACs or parameters."""
    front: tuple[FrontPoint, ...]
    front_shown: bool
    """Whether it was asked for."""
    slower: tuple[Slower, ...]
    """Saves MACs, costs time: what was excluded for that."""
    split: SplitSummary | None
    steps: tuple[tuple[str, str], ...]
    seconds: dict[str, float]
