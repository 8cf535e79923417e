"""`edgecompress latency build`: measures the blocks of a search space on a device, then whole networks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from edgecompress.core.costs import op_macs
from edgecompress.core.latency_results import BuildResult, Forecast, TableSummary
from edgecompress.core.latency_table import (
    Calibration,
    Heading,
    LatencyTable,
    TableDtype,
    TableFormat,
    block_ms,
    make_table,
)
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.store import write_record
from edgecompress.core.types import Size
from edgecompress.devices.contract import Options
from edgecompress.errors import ConfigError, DeviceError, MissingPackage
from edgecompress.latency.journal import (
    Journal,
    check_heading,
    journal_path,
    locked,
    read_entries,
    read_heading,
)
from edgecompress.latency.lookup import lookup_of
from edgecompress.latency.space import Space, expected_count, pending
from edgecompress.latency.sweep import sweep
from edgecompress.pipeline.at_once import at_once
from edgecompress.pipeline.bench import device_serials
from edgecompress.pipeline.latency_calibrate import calibrate
from edgecompress.pipeline.latency_files import read_table, summary, table_heading
from edgecompress.pipeline.latency_identity import is_of
from edgecompress.pipeline.latency_measure import Place, seconds_per_file
from edgecompress.pipeline.latency_space import PARTS, Network, check_plans, load_network, space_of
from edgecompress.pipeline.latency_work import Bench, find_place, measure_blocks, open_bench

PLANS = 16
"""Random plans per network that the calibration is fitted on, beside the dense network."""
EXACT_TOLERANCE, MEASURED_TOLERANCE = 0.02, 0.04
"""Largest error of a width that is not measured; timed blocks are not known better than that."""

DEFAULT_OPTIONS = Options()


@dataclass(frozen=True)
class Request:
    """A table to be built."""

    models: tuple[str, ...]
    """Model sources as for `compress`."""
    output: Path
    device: str = "local"
    """A name of `edgecompress list devices`, or the path of a device file."""
    format: TableFormat = "tflite"
    """Of the files that are measured."""
    dtype: TableDtype = "float32"
    parts: tuple[str, ...] = PARTS
    """Methods whose candidates are measured; `widths` and `dimensions`."""
    layers: str = "paper"
    """Which may be replaced: those the papers compress, `all`, or patterns as `layer1.*,head`."""
    input_size: Size | None = None
    """Height and width, where the models do not say."""
    channels: int | None = None
    """Of the input, as for `compress`."""
    classes: int | None = None
    """The models tell apart, as for `compress`."""
    plans: int = PLANS
    """Random plans per network that calibrate the sum of blocks."""


@dataclass(frozen=True)
class _Work:
    """One device, and the table that is built for it."""

    request: Request
    place: Place
    output: Path
    networks: tuple[Network, ...]
    space: Space
    seed: int

    @property
    def name(self) -> str:
        return self.place.options.serial or self.place.device.name


def build(
    request: Request,
    *,
    options: Options = DEFAULT_OPTIONS,
    serials: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = NO_PROGRESS,
) -> BuildResult:
    """Measures what a search over some models may ask for, and writes it as a table.

    A table that exists is added to. A build that was stopped goes on where it was.

    Args:
        request: What to measure, and where to write it.
        options: How to reach the device.
        serials: Phones to measure on at the same time; `all` for every one attached. With several, each
            has a table of its own, named after its serial.
        seed: Of the order of measurements.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option is wrong, a model cannot be used, or the device fails.
    """
    start = time.perf_counter()
    work = _work(request, replace(options, clean=True), seed)
    phones = device_serials(work.place.device, serials, options.adb)
    each = [_for_serial(work, serial) for serial in phones]
    if len(each) > 1:
        each = [replace(one, output=_named(request.output, one.name)) for one in each]
    tables = at_once(_built, each, names=[one.name for one in each], progress=progress)
    return BuildResult(seconds=round(time.perf_counter() - start, 1), tables=tuple(tables))


def _for_serial(work: _Work, serial: str | None) -> _Work:
    return replace(work, place=replace(work.place, options=replace(work.place.options, serial=serial)))


def _named(output: Path, name: str) -> Path:
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return output.with_name(f"{output.stem}-{safe}{output.suffix}")


def _work(request: Request, options: Options, seed: int) -> _Work:
    if not request.models:
        raise ConfigError("latency build: no model is given; pass --model, as zoo:resnet20")
    check_plans(request.plans)
    if request.output.is_dir():
        raise ConfigError(f"--output {request.output}: is a directory; give the name of a file")
    place = find_place(request.device, request.format, options)
    networks = tuple(
        load_network(
            one,
            request.parts,
            layers=request.layers,
            input_size=request.input_size,
            channels=request.channels,
            classes=request.classes,
        )
        for one in dict.fromkeys(request.models)
    )
    return _Work(request, place, request.output, networks, space_of(networks), seed)


def forecast(request: Request) -> Forecast:
    """Says what `build` would do, without touching the device.

    Raises:
        EdgeCompressError: an option is wrong, or a model cannot be used.
    """
    work = _work(request, DEFAULT_OPTIONS, 0)
    table = read_table(work.output) if work.output.is_file() else None
    known = _known_ms(work, table)
    is_exact = work.place.device.emulation is not None
    blocks = expected_count(work.space, known, tolerance=_tolerance(is_exact=is_exact))
    networks = (1 + request.plans) * len(_uncalibrated(work, table))
    return Forecast(
        device=work.place.device.name,
        models=tuple(one.name for one in work.networks),
        layers=len({key for curve in work.space.curves.values() for key in curve.dense}),
        curves=len(work.space.curves),
        candidates=sum(len(curve.by_width) for curve in work.space.curves.values()) + len(work.space.singles),
        known=len(known),
        measurements=blocks,
        networks=networks,
        seconds=round(blocks * _block_seconds(work) + networks * _network_seconds(work), 1),
        table=str(work.output),
    )


def _known_ms(work: _Work, table: LatencyTable | None) -> dict[str, float]:
    """Returns what blocks take by the table that exists, and by the journal of a build that was stopped."""
    journal = journal_path(work.output)
    begun, before = read_heading(journal), None if table is None else table_heading(table)
    _check_asked(work, journal, begun)
    _check_asked(work, work.output, before)
    heading = begun or before
    if heading is None:
        return {}
    entries = [*(table.entries if table else ()), *read_entries(journal)]
    return {one.key: block_ms(one, heading.overhead_ms) for one in entries}


def _check_asked(work: _Work, path: Path, found: Heading | None) -> None:
    """Does what `check_heading` does, as far as it can be known without the device."""
    if found is not None:
        asked = {
            "device": work.place.device.name,
            "format": work.request.format,
            "dtype": work.request.dtype,
        }
        check_heading(path, found, found.model_copy(update=asked))


def _block_seconds(work: _Work) -> float:
    first = [task.macs for task in pending(work.space, {}, tolerance=EXACT_TOLERANCE)]
    return seconds_per_file(work.place, sum(first) / len(first))


def _network_seconds(work: _Work) -> float:
    macs = [op_macs(layer.op, layer.in_size) for one in work.networks for layer in one.layers]
    return seconds_per_file(work.place, sum(macs) / len(work.networks))


def _uncalibrated(work: _Work, table: LatencyTable | None) -> list[Network]:
    """Returns the networks to measure whole: new or edited ones, and those measured on a busy device."""
    known = {} if table is None else {(one.network, one.input_shape): one for one in table.calibrations}

    def is_known(network: Network) -> bool:
        found = known.get((network.name, network.ref.input_shape))
        return (
            found is not None and not found.is_doubtful and is_of(found, network.loaded, work.request.dtype)
        )

    return [one for one in work.networks if not is_known(one)]


def _built(work: _Work, progress: Progress) -> TableSummary:
    with locked(work.output) as path:
        table = read_table(work.output) if work.output.is_file() else None
        begun = read_heading(path) or (None if table is None else table_heading(table))
        bench = open_bench(work.place, work.request.format, work.request.dtype, begun=begun, seed=work.seed)
        if table is not None:
            check_heading(work.output, table_heading(table), bench.heading)
        journal = Journal(path, bench.heading)
        for entry in () if table is None else table.entries:
            journal.entries.setdefault(entry.key, entry)
        with _keeping():
            _sweep(work, bench, journal, progress)
            calibrations = _calibrated(work, bench, journal, table, progress)
        return _written(work, bench, journal, table, calibrations)


@contextlib.contextmanager
def _keeping() -> Iterator[None]:
    """Says of a device that is gone that nothing is lost."""
    try:
        yield
    except (DeviceError, MissingPackage) as error:
        kept = "what was measured is kept, run the same command to go on"
        raise type(error)(f"{error}; {kept}") from None


def _tolerance(*, is_exact: bool) -> float:
    return EXACT_TOLERANCE if is_exact else MEASURED_TOLERANCE


def _sweep(work: _Work, bench: Bench, journal: Journal, progress: Progress) -> None:
    tolerance = _tolerance(is_exact=bench.is_exact)
    measure = partial(measure_blocks, bench)
    sweep(work.space, journal, measure, tolerance=tolerance, seed=work.seed, progress=progress)


def _calibrated(
    work: _Work, bench: Bench, journal: Journal, table: LatencyTable | None, progress: Progress
) -> list[Calibration]:
    lookup = lookup_of(journal.entries.values(), journal.heading.overhead_ms, name=str(work.output))
    new = [
        calibrate(bench, journal, lookup, one, plans=work.request.plans, progress=progress)
        for one in _uncalibrated(work, table)
    ]
    kept = [] if table is None else table.calibrations
    replaced = {(one.network, one.input_shape) for one in new}
    return [*(one for one in kept if (one.network, one.input_shape) not in replaced), *new]


def _written(
    work: _Work,
    bench: Bench,
    journal: Journal,
    table: LatencyTable | None,
    calibrations: Sequence[Calibration],
) -> TableSummary:
    device = work.place.device
    new = make_table(
        journal.heading,
        soc=device.soc,
        created=datetime.now(UTC),
        entries=list(journal.entries.values()),
        calibrations=calibrations,
        notes=device.notes if bench.is_exact else (),
    )
    write_record(work.output, new, indent=None)
    journal.remove()
    return summary(new, work.output, added=len(new.entries) - (len(table.entries) if table else 0))
