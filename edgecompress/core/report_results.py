"""What `edgecompress report` knows of runs, and `edgecompress runs` of a directory of them."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field, JsonValue

from edgecompress.core.elastic_results import ElasticResult
from edgecompress.core.measurement import Interval
from edgecompress.core.prune_results import PrunedGroup
from edgecompress.core.results import ExportedFile, ModelSummary, SplitSummary
from edgecompress.core.search_results import FrontPoint, Round, Slower
from edgecompress.core.train_results import EpochRow
from edgecompress.core.types import Metric, Record, Size

HowKnown = Literal["measured", "emulated", "predicted"]
"""Timed on the device, computed by a model of it, or summed from a latency table."""


class TimePair(Record):
    """Milliseconds before and after on one device."""

    device: str
    how_known: HowKnown
    what: str = ""
    """Which file with which runtime, where it was a file."""
    file: str | None = None
    """The compressed one, where it was a file."""
    before_ms: float
    after_ms: float
    before_interval: Interval | None = None
    after_interval: Interval | None = None
    speedup: float
    speedup_interval: Interval | None = None
    verdict: Literal["faster", "slower", "no difference"] | None = None
    """None where nothing was compared in turns."""
    statement: str = ""
    """The verdict in words."""
    goal: bool = False
    """Whether it is the time the search was about."""
    doubts: tuple[str, ...] = ()
    """Why the measurement is not valid; empty where it is."""

    @property
    def known_words(self) -> str:
        """How it is known, and whether that is to be doubted."""
        return f"{self.how_known}, not valid" if self.doubts else self.how_known


class LayerView(Record):
    """What became of one layer, and what it costs."""

    name: str
    family: str
    """`dense` where nothing changed, `narrower` where channels went."""
    ranks: tuple[int, ...]
    in_size: Size
    params_before: int
    params_after: int
    macs_before: int
    macs_after: int
    before_ms: float | None = None
    after_ms: float | None = None


class SpectrumView(Record):
    """How much of a dense layer each rank of the chosen family carries."""

    layer: str
    family: str
    rank: int
    """That was kept."""
    max_rank: int
    """At which the family reproduces the layer exactly."""
    values: tuple[float, ...]
    """Singular values over the largest, in falling order; of a sliced family the root mean square. Of long
    spectra some at equal distances, the first and the last among them."""
    energy_kept: float
    """Share of the squares of all values that the kept rank has, 0 to 1."""


class RecoveryStep(Record):
    """One stage that won accuracy back."""

    level: str
    outcome: str = ""
    gain: float | None = None
    """Percentage points, where they are known."""
    minutes: float | None = None
    kept: bool | None = None
    """Whether its network was the best so far; None where that was not asked."""


class TrainingView(Record):
    """How a network was trained."""

    method: str
    optimiser: str
    epochs: tuple[EpochRow, ...]
    best_epoch: int | None
    """That was kept; None: the last, 0: the weights from before."""
    stopped: str | None
    values_used: int
    """Singular values above 1 % of the largest of their layer, of all layers together."""
    values: int


class CellView(Record):
    """One kind of cell that a topology search found."""

    kind: str
    nodes: tuple[str, ...]
    """What each node adds up, in words."""
    probabilities: tuple[tuple[float, ...], ...]
    """By edge and operation."""


class RunReport(Record):
    """Everything a page shows of one run."""

    name: str
    path: str
    command: str
    model: str
    how: str
    """Which search or rule made it, in words."""
    created: AwareDatetime
    seed: int
    dense: ModelSummary | None
    """None where there was nothing before, as for `topology`."""
    compressed: ModelSummary
    unrecovered: ModelSummary | None = None
    """The network whose accuracy was to come back, where that was the task."""
    times: tuple[TimePair, ...] = ()
    """The one the search was about first."""
    metric: Metric | None = None
    target: float | None = None
    dense_cost: float | None = None
    cost: float | None = None
    """In the unit of `metric`."""
    met: bool | None = None
    reason: str | None = None
    front: tuple[FrontPoint, ...] = ()
    layers: tuple[LayerView, ...] = ()
    rest_ms: float | None = None
    """What the table says of everything that is not in a layer with milliseconds, before."""
    rest_after_ms: float | None = None
    groups: tuple[PrunedGroup, ...] = ()
    slower: tuple[Slower, ...] = ()
    rounds: tuple[Round, ...] = ()
    spectra: tuple[SpectrumView, ...] = ()
    recovery: tuple[RecoveryStep, ...] = ()
    training: TrainingView | None = None
    elastic: ElasticResult | None = None
    """The sizes the network was cut to."""
    operations: tuple[str, ...] = ()
    """Of `cells`, in the order of their probabilities."""
    cells: tuple[CellView, ...] = ()
    files: tuple[ExportedFile, ...] = ()
    split: SplitSummary | None = None
    seconds: dict[str, float] = Field(default_factory=dict)
    left_alone: tuple[tuple[str, str], ...] = ()
    """Layers and groups that had to stay, each with the reason."""
    notes: tuple[str, ...] = ()
    """What could not be shown, and why."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    conditions: dict[str, str] = Field(default_factory=dict)
    """Of the measurements: device, build, cores and the like."""
    commands: tuple[str, ...] = ()
    """That do it all again."""


class ReportResult(Record):
    """What `edgecompress report` gathered and wrote."""

    schema_version: Literal[1] = 1
    runs: tuple[RunReport, ...]
    written: tuple[str, ...] = ()
    """Files."""


class RunLine(Record):
    """One line of `edgecompress runs`; None where a run does not have the figure."""

    name: str
    path: str
    command: str
    model: str
    created: AwareDatetime | None = None
    """None for a run that is not finished."""
    finished: bool = True
    top1: float | None = None
    top1_before: float | None = None
    after_ms: float | None = None
    before_ms: float | None = None
    how_known: HowKnown | None = None
    """Of the milliseconds."""
    file: str | None = None
    """Whose milliseconds they are, where several may have been measured."""
    doubts: tuple[str, ...] = ()
    """Why the milliseconds are not valid; empty where they are."""
    macs: int | None = None
    macs_before: int | None = None
    params: int | None = None
    params_before: int | None = None
    problem: str | None = None
    """Why nothing more is known of it."""


class RunsResult(Record):
    """What `edgecompress runs` lists, oldest first."""

    runs_dir: str
    runs: tuple[RunLine, ...]


class InitResult(Record):
    """What `edgecompress init` wrote and found out."""

    file: str
    model: str
    facts: tuple[str, ...]
    """About model, images and device, each checked."""
    next: tuple[str, ...]
    """Commands to go on with."""
