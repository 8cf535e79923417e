"""What the `latency` commands return, to be shown or printed as JSON."""

from __future__ import annotations

from pydantic import AwareDatetime

from edgecompress.core.latency_table import Calibration, PlanTiming
from edgecompress.core.measurement import Conditions, Provenance
from edgecompress.core.types import Record


class Forecast(Record):
    """What building a table will take; nothing was measured yet. `latency build --dry-run`."""

    device: str
    models: tuple[str, ...]
    layers: int
    """Distinct dense layers."""
    curves: int
    candidates: int
    """Distinct blocks a search may choose from."""
    known: int
    """Blocks measured before."""
    measurements: int
    """How many blocks will be measured, about."""
    networks: int
    """Whole networks to be measured."""
    seconds: float
    """About."""
    table: str


class TableSummary(Record):
    """A table in short. `latency show`, and each table `latency build` wrote."""

    table: str
    """Its path."""
    device: str
    soc: str | None
    provenance: Provenance
    conditions: Conditions
    format: str
    dtype: str
    created: AwareDatetime
    tool_version: str
    sha256: str
    entries: int
    by_kind: dict[str, int]
    """How many entries are dense layers, pairs, ..."""
    added: int | None = None
    """How many of them are new, where a build wrote the table."""
    calibrations: tuple[Calibration, ...]
    notes: tuple[str, ...] = ()


class BuildResult(Record):
    """What `latency build` did."""

    seconds: float
    tables: tuple[TableSummary, ...]
    """One per device."""


class NetworkCheck(Record):
    """Predicted against measured for one network."""

    network: str
    mean_error: float
    """Of the predictions, as a share; absolute."""
    worst_error: float
    rank_correlation: float | None
    """Spearman's; None for fewer than three plans."""
    timings: tuple[PlanTiming, ...]


class CheckResult(Record):
    """Predicted against measured, for plans that were not used in the fit. `latency check`."""

    table: str
    device: str
    provenance: Provenance
    conditions: Conditions
    networks: tuple[NetworkCheck, ...]


class EntryDifference(Record):
    """A block in two tables."""

    key: str
    first_ms: float
    second_ms: float

    @property
    def ratio(self) -> float:
        """The second's time over the first's."""
        return self.second_ms / self.first_ms


class TableDifference(Record):
    """What two tables say of the same blocks. `latency diff`."""

    first: str
    second: str
    unlike: tuple[str, ...]
    """Conditions that differ, as `threads: 1 and 4`."""
    common: int
    only_first: int
    only_second: int
    median_ratio: float | None
    """The second's times over the first's; None without common blocks."""
    rank_correlation: float | None
    largest: tuple[EntryDifference, ...]
    """Where they differ most from the median ratio."""
