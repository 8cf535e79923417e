"""`edgecompress latency show|merge|diff`: table files, the user's own and the shipped ones."""

from __future__ import annotations

import statistics
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from edgecompress.core.latency_results import EntryDifference, TableDifference, TableSummary
from edgecompress.core.latency_table import (
    Calibration,
    Heading,
    LatencyTable,
    PlanTiming,
    TableEntry,
    make_table,
)
from edgecompress.core.measurement import Conditions
from edgecompress.core.store import read_record, write_record
from edgecompress.devices.files import shipped_directory
from edgecompress.errors import ConfigError
from edgecompress.latency.journal import check_heading, locked
from edgecompress.latency.parsing import parse_block

TABLES = "tables"
SUFFIX = ".json"
LARGEST = 10
"""How many differences are listed."""


def find_table(name: str) -> Path:
    """Returns the path of a table: a file, else one we ship, with or without `.json`.

    Raises:
        ConfigError: there is neither.
    """
    for text in (name, f"{name}{SUFFIX}"):
        if Path(text).expanduser().is_file():
            return Path(text).expanduser()
    shipped = {path.stem: path for path in sorted((shipped_directory() / TABLES).glob(f"*{SUFFIX}"))}
    if name.removesuffix(SUFFIX) in shipped:
        return shipped[name.removesuffix(SUFFIX)]
    known = ", ".join(path.name for path in shipped.values()) or "none"
    raise ConfigError(
        f"latency table {name!r}: there is no such file, and shipped are: {known}; build one with "
        "`edgecompress latency build --device NAME --model MODEL -o FILE`"
    )


def read_table(name: str | Path) -> LatencyTable:
    """Reads a table.

    Raises:
        ConfigError: there is none of that name.
        ArtefactError: it is damaged, was edited, or is of another version.
    """
    return read_record(find_table(str(name)), LatencyTable)


def table_heading(table: LatencyTable) -> Heading:
    """Returns under which conditions a table was measured."""
    return Heading(**{name: getattr(table, name) for name in Heading.model_fields})


def show(name: str) -> TableSummary:
    """Returns a table in short.

    Raises:
        EdgeCompressError: there is none, or it is damaged.
    """
    return summary(read_table(name), find_table(name))


def summary(table: LatencyTable, path: Path, *, added: int | None = None) -> TableSummary:
    """Returns a table in short; `added` is how many of its entries are new."""
    return TableSummary(
        table=str(path),
        device=table.device,
        soc=table.soc,
        provenance=table.provenance,
        conditions=table.conditions,
        format=table.format,
        dtype=table.dtype,
        created=table.created,
        tool_version=table.tool_version,
        sha256=table.sha256,
        entries=len(table.entries),
        by_kind=dict(Counter(_kind(entry) for entry in table.entries).most_common()),
        added=added,
        calibrations=table.calibrations,
        notes=table.notes,
    )


def _kind(entry: TableEntry) -> str:
    block, _ = parse_block(entry.key)
    kinds = [op.kind for op in block.branches[0]]
    if len(block.branches) > 1:
        return "two branches"
    if "attention" in kinds:
        return "attention"
    if "gelu" in kinds:
        return "MLP"
    return {1: "layer", 2: "pair", 3: "triple"}.get(len(kinds), f"chain of {len(kinds)}")


def merge(names: list[str], output: Path) -> TableSummary:
    """Writes the entries and calibrations of several tables of one device as one; later ones win.

    Raises:
        ConfigError: fewer than two are given, or they were measured under different conditions.
        ArtefactError: one is damaged, or the result cannot be written.
    """
    if len(names) < 2:
        raise ConfigError("latency merge: give at least two tables")
    tables = [read_table(name) for name in names]
    first = tables[0]
    for name, table in zip(names[1:], tables[1:], strict=True):
        check_heading(Path(name), table_heading(table), table_heading(first))
    factors = [_factor(table, first) for table in tables]
    entries = {
        one.key: _scaled_entry(one, factor)
        for table, factor in zip(tables, factors, strict=True)
        for one in table.entries
    }
    calibrations = {
        (one.network, one.input_shape): _scaled_calibration(one, factor)
        for table, factor in zip(tables, factors, strict=True)
        for one in table.calibrations
    }
    merged = make_table(
        table_heading(first),
        soc=first.soc,
        created=datetime.now(UTC),
        entries=list(entries.values()),
        calibrations=list(calibrations.values()),
        notes=list(dict.fromkeys(note for table in tables for note in table.notes)),
    )
    with locked(output):
        write_record(output, merged, indent=None)
    return summary(merged, output, added=len(merged.entries) - len(first.entries))


def _factor(table: LatencyTable, onto: LatencyTable) -> float:
    """Returns what puts a table on the scale of another: the reference block must take the same in both."""
    if table.reference_ms is None or onto.reference_ms is None:
        return 1.0
    return onto.reference_ms / table.reference_ms


def _scaled_entry(entry: TableEntry, factor: float) -> TableEntry:
    interval = entry.interval_ms
    if interval is not None:
        ends = {"low": interval.low * factor, "high": interval.high * factor}
        interval = interval.model_copy(update=ends)
    return entry.model_copy(update={"median_ms": entry.median_ms * factor, "interval_ms": interval})


def _scaled_calibration(one: Calibration, factor: float) -> Calibration:
    """Returns a calibration of blocks that take so much longer; their sum counts as before."""
    return one.model_copy(
        update={
            "per_megabyte_ms": one.per_megabyte_ms * factor,
            "rest_ms": one.rest_ms * factor,
            "timings": tuple(_scaled_timing(timing, factor) for timing in one.timings),
        }
    )


def _scaled_timing(timing: PlanTiming, factor: float) -> PlanTiming:
    return timing.model_copy(
        update={name: getattr(timing, name) * factor for name in ("blocks_ms", "measured_ms", "predicted_ms")}
    )


def diff(first: str, second: str) -> TableDifference:
    """Compares two tables, of one device or of two, block by block.

    Raises:
        EdgeCompressError: one is missing or damaged.
    """
    tables = read_table(first), read_table(second)
    one, two = ({entry.key: entry.median_ms for entry in table.entries} for table in tables)
    common = sorted(one.keys() & two.keys())
    ratios = {key: two[key] / one[key] for key in common}
    median = statistics.median(ratios.values()) if ratios else None
    far = sorted(common, key=lambda key: abs(ratios[key] / (median or 1.0) - 1), reverse=True)
    return TableDifference(
        first=first,
        second=second,
        unlike=tuple(_unlike(*tables)),
        common=len(common),
        only_first=len(one) - len(common),
        only_second=len(two) - len(common),
        median_ratio=median,
        rank_correlation=_ranks([one[key] for key in common], [two[key] for key in common]),
        largest=tuple(
            EntryDifference(key=key, first_ms=one[key], second_ms=two[key]) for key in far[:LARGEST]
        ),
    )


def _ranks(one: list[float], two: list[float]) -> float | None:
    if len(one) <= 2:
        return None
    from scipy.stats import spearmanr  # takes a second to import, and one command asks

    return float(spearmanr(one, two).statistic)


def _unlike(first: LatencyTable, second: LatencyTable) -> list[str]:
    found = [(name, getattr(first, name), getattr(second, name)) for name in ("format", "dtype")]
    for name in Conditions.model_fields:
        found.append((name, getattr(first.conditions, name), getattr(second.conditions, name)))
    return [
        f"{name.replace('_', ' ')}: {_told(one)} and {_told(two)}" for name, one, two in found if one != two
    ]


def _told(value: object) -> str:
    return ",".join(map(str, value)) or "any" if isinstance(value, tuple) else str(value)
