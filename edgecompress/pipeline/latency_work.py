"""One device while a table is built or checked: its blocks, and whole networks under plans."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgecompress import devices
from edgecompress.core.latency_table import Heading, TableDtype, TableEntry, TableFormat
from edgecompress.core.measurement import Conditions
from edgecompress.core.plugins import discover
from edgecompress.devices.contract import Driver, Options
from edgecompress.devices.files import load_device
from edgecompress.errors import ConfigError
from edgecompress.latency import reference
from edgecompress.latency.formats import FORMATS
from edgecompress.latency.space import Task, task_of
from edgecompress.pipeline.latency_measure import (
    Job,
    Place,
    Timing,
    Write,
    exact_timings,
    relative_timings,
    steady_ms,
)
from edgecompress.pipeline.latency_networks import write_network
from edgecompress.pipeline.latency_space import Change, Network


def find_place(device: str, format: TableFormat, options: Options) -> Place:
    """Returns how to reach a device with files of a format.

    Raises:
        ConfigError: there is no such device, or it runs no such files.
    """
    found, drivers = load_device(device), discover(devices, Driver)
    suffix = FORMATS[format].suffix
    for name in found.drivers:
        if name in drivers and suffix in drivers[name].suffixes:
            return Place(found, drivers[name], options, suffix)
    can = ", ".join(sorted({each for name in found.drivers for each in drivers[name].suffixes}))
    raise ConfigError(f"--format {format}: {device} runs {can} files; choose the other format")


@dataclass(frozen=True)
class Bench:
    """A device that is ready, and the scale of its figures."""

    place: Place
    heading: Heading
    seed: int

    @property
    def is_exact(self) -> bool:
        """Whether figures are computed and not timed."""
        return self.heading.reference_ms is None

    def timings(
        self, writes: Sequence[Write], names: Sequence[str] | None = None
    ) -> Iterator[tuple[int, Timing]]:
        """Yields what files take, each with its position, as soon as it is known; errors give their names.

        Raises:
            DeviceError: the device does not answer.
            ExportError: it cannot run a file.
        """
        named = names or [f"file {position + 1}" for position in range(len(writes))]
        jobs = [Job(name, write) for name, write in zip(named, writes, strict=True)]
        with tempfile.TemporaryDirectory(prefix="edgecompress-latency-") as name:
            if self.heading.reference_ms is None:
                yield from exact_timings(self.place, Path(name), jobs)
                return
            scale = Job("reference block", _write_reference(self.heading.format, self.heading.dtype))
            scale_ms = self.heading.reference_ms
            yield from relative_timings(self.place, Path(name), jobs, scale, scale_ms, seed=self.seed)


def open_bench(
    place: Place, format: TableFormat, dtype: TableDtype, *, begun: Heading | None, seed: int
) -> Bench:
    """Makes a device ready; `begun` is what earlier figures were measured under, to go on with them.

    Raises:
        DeviceError: it cannot be reached.
    """
    if begun is not None and place.options.cores is None:
        place = place.on_cores(begun.conditions.cores)  # equal cores: else the idlest is another every time
    with place.session() as session:
        conditions = session.conditions
    place = place.fixed(conditions)
    begun = begun or _begun(place, conditions, format, dtype)
    heading = begun.model_copy(
        update={"device": place.device.name, "conditions": conditions, "format": format, "dtype": dtype}
    )
    return Bench(place, heading, seed)


def _begun(place: Place, conditions: Conditions, format: TableFormat, dtype: TableDtype) -> Heading:
    """Returns the heading of a new table: the scale of all its figures."""
    with tempfile.TemporaryDirectory(prefix="edgecompress-latency-") as name:
        exact = conditions.provenance == "emulated"
        scale = None if exact else steady_ms(place, Path(name), _write_reference(format, dtype))
        nothing = task_of(reference.NOTHING, reference.NOTHING_SIZE)
        overhead_ms = steady_ms(place, Path(name), _writer(nothing, format, dtype))
    return Heading(
        device=place.device.name,
        conditions=conditions,
        format=format,
        dtype=dtype,
        reference_ms=scale,
        overhead_ms=overhead_ms,
    )


def _write_reference(format: TableFormat, dtype: TableDtype) -> Write:
    return _writer(task_of(reference.BLOCK, reference.IN_SIZE), format, dtype)


def _writer(task: Task, format: TableFormat, dtype: TableDtype) -> Write:
    return lambda file: FORMATS[format].write_block(task.block, task.in_size, file, dtype)


def measure_blocks(bench: Bench, tasks: Sequence[Task]) -> Iterator[TableEntry]:
    """Yields the entries of blocks as soon as they are known."""
    writes = [_writer(task, bench.heading.format, bench.heading.dtype) for task in tasks]
    for position, timing in bench.timings(writes, [task.key for task in tasks]):
        yield TableEntry(
            key=tasks[position].key,
            median_ms=timing.median_ms,
            interval_ms=timing.interval_ms,
            runs=timing.runs,
        )


def measure_plans(
    bench: Bench, network: Network, plans: Sequence[tuple[str, Sequence[Change]]]
) -> Iterator[tuple[str, float]]:
    """Yields the milliseconds of a whole network under each plan, as soon as they are known.

    Raises:
        ExportError: the network cannot be exported.
    """
    if not plans:
        return
    kind, dtype = FORMATS[bench.heading.format], bench.heading.dtype
    with tempfile.TemporaryDirectory(prefix="edgecompress-latency-") as name:
        dense = Path(name) / f"dense{kind.suffix}"
        write_network(network.loaded.module, network.ref, bench.heading.format, dtype, dense)

        def write(changes: Sequence[Change], file: Path) -> None:
            kind.splice(dense, changes, file, layers=network.layers)

        names = [f"{network.name} as {plan}" for plan, _ in plans]
        for position, timing in bench.timings([partial(write, one) for _, one in plans], names):
            yield plans[position][0], timing.median_ms
