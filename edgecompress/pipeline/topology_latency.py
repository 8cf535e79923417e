"""Milliseconds of the operators of cells: from a latency table, or measured on a device where it has none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from edgecompress.core.latency_table import (
    Heading,
    LatencyTable,
    TableDtype,
    TableEntry,
    TableFormat,
    make_table,
)
from edgecompress.core.progress import Progress
from edgecompress.core.types import Block
from edgecompress.devices.contract import Options
from edgecompress.errors import ConfigError
from edgecompress.latency.journal import check_heading
from edgecompress.latency.keys import block_key
from edgecompress.latency.lookup import Lookup, lookup_of
from edgecompress.latency.space import task_of
from edgecompress.pipeline.latency_files import find_table, read_table, table_heading
from edgecompress.pipeline.latency_work import find_place, measure_blocks, open_bench
from edgecompress.search.cell_costs import Part


@dataclass(frozen=True)
class CellClock:
    """Knows what single operators take."""

    table: str | None
    """File it was read from."""
    heading: Heading
    lookup: Lookup
    measured: tuple[TableEntry, ...]
    """What the table did not have."""

    def ms(self, part: Part) -> float:
        """Returns the milliseconds of one operator.

        Raises:
            ConfigError: it was not among those asked for, and is not known.
        """
        return self.lookup.ms(_block(part), part[1])

    def new_table(self) -> LatencyTable:
        """Returns what was measured as a table of its own."""
        return make_table(self.heading, soc=None, created=datetime.now(UTC), entries=self.measured)


def read_cell_clock(
    table: str | None, device: str | None, parts: Collection[Part], *, seed: int, progress: Progress
) -> CellClock:
    """Returns a clock that knows all of `parts`; what the table lacks is measured on the device.

    Raises:
        ConfigError: an operator is not in the table and no device is given, or they do not go together.
        EdgeCompressError: the table is damaged, or the device cannot be reached.
    """
    found = None if table is None else read_table(table)
    entries = () if found is None else found.entries
    heading = None if found is None else table_heading(found)
    lookup = lookup_of(entries, 0.0 if heading is None else heading.overhead_ms, name=table or "")
    missing = [part for part in dict.fromkeys(parts) if lookup.find(_block(part), part[1]) is None]
    path = None if table is None else str(find_table(table))
    if heading is not None and not missing:
        return CellClock(path, heading, lookup, ())
    if device is None:
        raise ConfigError(_lacks(str(table), missing))
    heading, measured = _measured(table, heading, device, missing, seed, progress)
    known = lookup_of([*entries, *measured], heading.overhead_ms, name=table or device)
    return CellClock(path, heading, known, measured)


def _block(part: Part) -> Block:
    return Block(branches=((part[0],),))


def _lacks(table: str, missing: list[Part]) -> str:
    first = block_key(_block(missing[0]), missing[0][1])
    more = f" and {len(missing) - 1} more operators" if len(missing) > 1 else ""
    return (
        f"latency table {table!r}: has no entry for {first!r}{more} of these cells; pass --device NAME to "
        "measure them there, or search without a table"
    )


def _measured(
    table: str | None, begun: Heading | None, device: str, parts: list[Part], seed: int, progress: Progress
) -> tuple[Heading, tuple[TableEntry, ...]]:
    kind: TableFormat = "tflite" if begun is None else begun.format
    dtype: TableDtype = "float32" if begun is None else begun.dtype
    bench = open_bench(find_place(device, kind, Options(clean=True)), kind, dtype, begun=begun, seed=seed)
    if begun is not None:
        check_heading(find_table(str(table)), begun, bench.heading)
    tasks = [task_of(_block(part), part[1]) for part in parts]
    found = progress.track(measure_blocks(bench, tasks), f"measuring operators on {device}", len(tasks))
    return bench.heading, tuple(found)
