"""The device of a latency table while a search runs: plans as files, measured on the table's scale."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress.core.progress import Progress
from edgecompress.core.search_results import Compared, DeviceTime
from edgecompress.core.types import ModelRef
from edgecompress.devices.contract import Options
from edgecompress.errors import DeviceError, ExportError, MissingPackage
from edgecompress.latency.formats import FORMATS
from edgecompress.latency.journal import check_heading
from edgecompress.pipeline.bench import bench as compare_files
from edgecompress.pipeline.latency_costs import Clock
from edgecompress.pipeline.latency_files import table_heading
from edgecompress.pipeline.latency_measure import Write
from edgecompress.pipeline.latency_networks import write_network
from edgecompress.pipeline.latency_space import Change
from edgecompress.pipeline.latency_work import Bench, find_place, open_bench


@dataclass(frozen=True)
class Target:
    """A device that answers, and the dense network as a file for it."""

    bench: Bench
    clock: Clock
    dense: Path
    options: Options
    ref: ModelRef

    def plan_time(self, changes: list[Change]) -> DeviceTime:
        """Returns what the device takes for a plan, put into the exported dense network.

        Raises:
            DeviceError: it does not answer.
        """
        kind = FORMATS[self.clock.table.format]
        return self._time(lambda file: kind.splice(self.dense, changes, file, layers=self.clock.layers))

    def file_time(self, file: Path) -> DeviceTime:
        """Returns what the device takes for a file.

        Raises:
            DeviceError: it does not answer.
        """

        def copy(to: Path) -> None:
            shutil.copyfile(file, to)

        return self._time(copy)

    def _time(self, write: Write) -> DeviceTime:
        ((_, timing),) = self.bench.timings([write])
        return DeviceTime(ms=timing.median_ms, doubts=timing.doubts)

    def write(self, network: nn.Module, file: Path) -> None:
        """Exports a network in the table's format and number type.

        Raises:
            ExportError: no converter can.
        """
        write_network(network, self.ref, self.clock.table.format, self.clock.table.dtype, file)

    def compare(self, compressed: Path, *, preset: str, progress: Progress) -> Compared:
        """Measures dense and compressed in turns.

        Raises:
            DeviceError: the device does not answer.
        """
        result = compare_files(
            [str(self.dense), str(compressed)],
            device=self.clock.table.device,
            preset=preset,
            threads=self.options.threads,
            cores=self.options.cores,
            serials=() if self.options.serial is None else (self.options.serial,),
            benchmark_binary=self.options.benchmark_binary,
            timeout_s=self.options.timeout_s,
            adb=self.options.adb,
            progress=progress,
        )
        (measured,) = result.benches
        (comparison,) = measured.comparisons
        doubts = (reason for one in measured.measurements for reason in one.validity.doubts)
        return Compared(comparison=comparison, doubts=tuple(dict.fromkeys(doubts)))


def open_target(
    clock: Clock, ref: ModelRef, module: nn.Module, options: Options, *, folder: Path, seed: int
) -> Target:
    """Makes the table's device ready, and writes the dense network to `folder` unless it is there.

    Raises:
        DeviceError: it cannot be reached, or is not what the table was measured on.
        ExportError: the dense network cannot be exported.
    """
    table = clock.table
    place = find_place(table.device, table.format, options)
    bench = open_bench(place, table.format, table.dtype, begun=table_heading(table), seed=seed)
    check_heading(clock.path, table_heading(table), bench.heading)
    dense = folder / f"dense{FORMATS[table.format].suffix}"
    if not dense.is_file():
        part = folder / f"part{dense.suffix}"  # converters go by the suffix
        write_network(module, ref, table.format, table.dtype, part)
        part.replace(dense)
    return Target(bench, clock, dense, options, ref)


UNREACHABLE = (DeviceError, ExportError, MissingPackage)
"""Why a device may not be at hand; a search then goes by the table alone."""
