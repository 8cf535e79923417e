"""The latency table of a device: milliseconds of blocks, and how their sum becomes that of a network."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import AwareDatetime, Field, FiniteFloat, model_validator

from edgecompress.core.measurement import Conditions, Interval, Provenance
from edgecompress.core.types import Block, Record, Size


class TableEntry(Record):
    """A block that was measured by itself."""

    block: Block
    in_size: Size
    median_ms: FiniteFloat = Field(gt=0)
    interval_ms: Interval | None
    """None where the figure is exact, as emulated counts are."""
    runs: int = Field(ge=1)


class Residual(Record):
    """A whole network that was measured, and what the table says of it."""

    network: str
    predicted_ms: FiniteFloat = Field(gt=0)
    measured_ms: FiniteFloat = Field(gt=0)
    fitted: bool
    """Whether it was used to fit the calibration; others are the honest test."""


class Calibration(Record):
    """What the sum of blocks misses: `scale * sum + per_block_ms * blocks + constant_ms + rest_ms`.

    `rest_ms`, what a network spends outside of the blocks that are searched, belongs to the network.
    """

    scale: FiniteFloat = Field(gt=0)
    per_block_ms: FiniteFloat = 0.0
    constant_ms: FiniteFloat = 0.0
    residuals: tuple[Residual, ...] = ()


class LatencyTable(Record):
    """Everything a search may ask about a device."""

    schema_version: Literal[1] = 1
    name: str
    soc: str | None
    conditions: Conditions
    format: Literal["tflite", "onnx"]
    dtype: Literal["float32", "int8"]
    created: AwareDatetime
    tool_version: str
    entries: tuple[TableEntry, ...]
    calibration: Calibration | None = None
    sha256: str
    """Of the entries and the calibration, so that an edited or half-written table is noticed."""

    @property
    def provenance(self) -> Provenance:
        """Whether the figures were measured or emulated."""
        return self.conditions.provenance

    @model_validator(mode="after")
    def _untouched(self) -> LatencyTable:
        if self.sha256 != table_hash(self.entries, self.calibration):
            raise ValueError("the hash does not fit the entries; the table was edited or damaged")
        return self


def table_hash(entries: tuple[TableEntry, ...], calibration: Calibration | None) -> str:
    """Returns what `LatencyTable.sha256` must be."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(entry.model_dump_json().encode())
    if calibration is not None:
        digest.update(calibration.model_dump_json().encode())
    return digest.hexdigest()
