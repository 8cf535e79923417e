"""The latency table of a device: milliseconds of blocks, and how their sum becomes that of a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from edgecompress import __version__
from edgecompress.core.measurement import Conditions, Interval, Provenance
from edgecompress.core.types import Record

TableFormat = Literal["tflite", "onnx"]
TableDtype = Literal["float32", "int8"]


class TableEntry(Record):
    """A block that was measured by itself."""

    key: str
    """What was run, as `conv 64>16 1x3 p0x1 @32x32 > conv 16>64 3x1 p1x0`; see `latency/keys.py`."""
    median_ms: FiniteFloat = Field(gt=0)
    interval_ms: Interval | None
    """None where the figure is exact, as emulated counts are."""
    runs: int = Field(ge=1)


def block_ms(entry: TableEntry, overhead_ms: float) -> float:
    """Returns what a block takes of what its file takes; noise must not make it nothing."""
    return max(entry.median_ms - overhead_ms, _LEAST * entry.median_ms)


_LEAST = 0.02


class PlanTiming(Record):
    """A whole network under one plan: what its blocks come to, and what it took."""

    plan: str
    """`dense`, or how the plan was drawn."""
    blocks_ms: FiniteFloat = Field(ge=0)
    """Sum over its blocks, each by itself."""
    weight_megabytes: FiniteFloat = Field(ge=0)
    """Of its blocks."""
    measured_ms: FiniteFloat = Field(gt=0)
    predicted_ms: FiniteFloat = Field(gt=0)
    fitted: bool
    """Whether it was used to fit the calibration; others are the honest test."""

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted_ms / self.measured_ms - 1


class Calibration(Record):
    """How the blocks of a network become its milliseconds.

    `scale * blocks_ms + per_megabyte_ms * weight_megabytes + rest_ms`: in a network weights are no longer
    in the cache from the run before, and `rest_ms` are all operators that are not searched.
    """

    network: str
    """Its source, as `zoo:resnet20`."""
    input_shape: tuple[int, int, int]
    layers: tuple[str, ...] = Field(min_length=1)
    """Whose blocks are summed; all others are in `rest_ms`."""
    scale: FiniteFloat = Field(gt=0)
    per_megabyte_ms: FiniteFloat
    rest_ms: FiniteFloat
    timings: tuple[PlanTiming, ...] = Field(min_length=1)
    fingerprint: str | None = None
    """Of what the network consists of (`nets/fingerprint.py`); None in tables that do not say."""

    @model_serializer(mode="wrap")
    def _without_unsaid(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves an unsaid fingerprint out: tables from before there were any keep their hash."""
        written: dict[str, Any] = write(self)
        return {name: value for name, value in written.items() if name != "fingerprint" or value is not None}

    def predict_ms(self, blocks_ms: float, weight_megabytes: float) -> float:
        """Returns the milliseconds of the network with these blocks."""
        return self.scale * blocks_ms + self.per_megabyte_ms * weight_megabytes + self.rest_ms

    @property
    def fit_error(self) -> float:
        """How far off it is for the plans it was fitted on, on average, as an absolute share."""
        errors = [abs(one.error) for one in self.timings if one.fitted]
        return sum(errors) / max(len(errors), 1)

    @property
    def is_doubtful(self) -> bool:
        """Whether whole networks took what sums of blocks cannot explain, as on a device that was busy."""
        return self.fit_error > DOUBTFUL


DOUBTFUL = 0.1
"""Error of a fit above which figures cannot be right: a quiet device comes to 1 or 2 percent."""


def _no_path(name: str) -> str:
    if "/" in name or "\\" in name or name.endswith(".toml"):
        raise ValueError("is a path, and a table only names its device")
    return name


DeviceName = Annotated[str, AfterValidator(_no_path)]
"""Which device file is read, and so what is reached and run, is not for a table to say."""


class Heading(Record):
    """Where and how figures were measured: the first line of a journal, and part of every table."""

    device: DeviceName
    conditions: Conditions
    format: TableFormat
    dtype: TableDtype
    reference_ms: FiniteFloat | None = Field(gt=0)
    """Of the reference block when the table was begun: all later sittings are scaled to it."""
    overhead_ms: FiniteFloat = Field(ge=0)
    """Of a file with next to nothing in it."""


class LatencyTable(Record):
    """Everything a search may ask about a device."""

    schema_version: Literal[1] = 1
    device: DeviceName
    """The name it was asked for by, as `pixel4`."""
    soc: str | None
    conditions: Conditions
    format: TableFormat
    dtype: TableDtype
    reference_ms: FiniteFloat | None = Field(gt=0)
    """Of the block all others are compared with while measuring, which cancels drift; None: exact."""
    overhead_ms: FiniteFloat = Field(ge=0)
    """Of a file with next to nothing in it: what each entry takes beyond its block."""
    created: AwareDatetime
    tool_version: str
    entries: tuple[TableEntry, ...]
    calibrations: tuple[Calibration, ...] = ()
    notes: tuple[str, ...] = ()
    sha256: str
    """Of everything but `created`, so that an edited or half-written table is noticed."""

    @property
    def provenance(self) -> Provenance:
        """Whether the figures were measured or emulated."""
        return self.conditions.provenance

    @model_validator(mode="after")
    def _untouched(self) -> LatencyTable:
        if self.sha256 != table_hash(self):
            raise ValueError("the hash does not fit the content")
        return self


def table_hash(table: LatencyTable) -> str:
    """Returns what `LatencyTable.sha256` must be."""
    content = table.model_dump_json(exclude={"sha256", "created"})
    return hashlib.sha256(content.encode()).hexdigest()


def make_table(
    heading: Heading,
    *,
    soc: str | None,
    created: datetime,
    entries: Sequence[TableEntry],
    calibrations: Sequence[Calibration] = (),
    notes: Sequence[str] = (),
) -> LatencyTable:
    """Returns a table with its hash; entries and calibrations are sorted, so equal tables are equal files."""
    fields: dict[str, Any] = {
        **{name: getattr(heading, name) for name in Heading.model_fields},
        "soc": soc,
        "created": created,
        "tool_version": __version__,
        "entries": tuple(sorted(entries, key=lambda one: one.key)),
        "calibrations": tuple(sorted(calibrations, key=lambda one: (one.network, one.input_shape))),
        "notes": tuple(notes),
    }
    unsigned = LatencyTable.model_construct(**fields, sha256="")
    return LatencyTable.model_validate(fields | {"sha256": table_hash(unsigned)})
