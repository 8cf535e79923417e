"""What `edgecompress topology` returns and writes: the cells it found and what they cost."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from edgecompress.core.genotype import Genotype
from edgecompress.core.measurement import Provenance
from edgecompress.core.results import ModelSummary, SplitSummary
from edgecompress.core.types import Plan, Record


class CellLatency(Record):
    """What the derived network should take, as the sum of its operators by themselves."""

    table: str | None
    """None where all operators were measured for this search."""
    device: str
    provenance: Provenance
    measured_now: int
    """Operators the table did not have."""
    gamma: float
    """Weight of the expected latency in the search."""
    predicted_ms: float
    cells_ms: float
    """Of that, on the edges of cells; the rest is not searched."""


class TopologyResult(Record):
    """What `topology` did. `topology.json`."""

    schema_version: Literal[1] = 1
    run: str
    method: Literal["rarts", "darts1"]
    genotype: Genotype
    operations: tuple[str, ...]
    """Searched among, in the order of `probabilities`."""
    probabilities: tuple[tuple[tuple[float, ...], ...], ...]
    """By kind of cell, edge and operation."""
    skip_ratio: float
    """Share of kept edges that are skip connections."""
    steps: int
    alpha_lr: float
    first_loss: float
    """Mean over the first tenth of the steps."""
    last_loss: float
    weights: str
    """Where the weights of the derived network come from."""
    network: ModelSummary
    plan: Plan
    latency: CellLatency | None
    """None without a latency table."""
    split: SplitSummary
    notes: tuple[str, ...]
    seconds: dict[str, float]

    @model_validator(mode="after")
    def _every_kind_has_probabilities(self) -> TopologyResult:
        cells, told = len(self.genotype.kinds()), len(self.probabilities)
        if told != cells:
            raise ValueError(f"probabilities of {told} kinds of cells, the genotype has {cells}")
        return self
