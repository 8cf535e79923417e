"""What `edgecompress export --sizes` makes of one network: several sizes, each with its figures and files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgecompress.core.measurement import Provenance
from edgecompress.core.results import ExportedFile, SplitSummary
from edgecompress.core.types import Accuracy, Budget, ModelRef, Record

SIZES, ELASTIC_FILE = "sizes", "elastic.json"
"""The directory of sizes in a run, and what is said of them in it."""


class SizeFigures(Record):
    """A network in figures."""

    macs: int
    params: int
    predicted_ms: float | None = None
    """By the latency table, where there is one."""
    score: float
    """Percent on the selection images: right answers, or without labels the answers of the whole network."""
    accuracy: Accuracy | None = None
    """On the report images."""


class ElasticSize(Record):
    """One size that was asked for."""

    name: str = Field(pattern=r"^[0-9][0-9.]*(ms)?$")
    """Of its directory, which is an artefact like any other."""
    budget: Budget
    found: SizeFigures
    """Of the network cut to this size."""
    network: str
    """Whose network stands there: its own, or one of another size that fits and has a better score."""
    offered: SizeFigures
    """Of the network that stands there."""
    layers: int
    """How many were cut, in the network that stands there."""
    files: tuple[ExportedFile, ...] = ()
    """In `exports` of its directory."""


class ElasticResult(Record):
    """One network in several sizes. `elastic.json`."""

    schema_version: Literal[1] = 1
    directory: str
    model: ModelRef
    trained: str | None
    """Method of the training; None where the network is not from a run of `train`."""
    mode: Literal["channel", "spatial"]
    """How kernels were read as matrices."""
    layers: str | None
    """Which were to be cut, as it was asked for; None: as usual."""
    rank_selection: str
    score: Literal["top-1", "agreement"]
    full: SizeFigures
    """Of the whole network."""
    sizes: tuple[ElasticSize, ...]
    """As they were asked for."""
    norms: str | None
    """How the statistics of batch norms were renewed; None where there are no norms, or nothing was cut."""
    norm_images: int
    latency_table: str | None = None
    device: str | None = None
    """Of the latency table."""
    provenance: Provenance | None = None
    """How the milliseconds of the table are known."""
    split: SplitSummary
    skipped: tuple[tuple[str, str], ...] = ()
    """Layers that could not be cut, each with the reason."""
    warnings: tuple[str, ...] = ()
    """What a reader should know, as that the weights are random."""
    seconds: dict[str, float] = Field(default_factory=dict)
