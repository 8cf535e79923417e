"""`edgecompress bench`: measures files on a device, in turns, and says what is faster and how surely."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from edgecompress import devices
from edgecompress.core.device import Device
from edgecompress.core.measurement import BenchResult, Comparison, DeviceBench, Measurement
from edgecompress.core.plugins import discover, pick
from edgecompress.core.presets import Preset, pick_preset
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.runs import installed_versions
from edgecompress.core.statistics import check_alike, compare
from edgecompress.core.store import read_record, write_record
from edgecompress.devices.contract import Driver, Options, Session
from edgecompress.devices.files import load_device
from edgecompress.devices.protocol import measure, shortest_names
from edgecompress.errors import ArtefactError, ConfigError
from edgecompress.pipeline.at_once import at_once
from edgecompress.pipeline.bench_files import BenchFile, find_files

ALL = "all"
"""As a serial: every phone that is attached."""


def bench(
    what: Sequence[str] = (),
    *,
    device: str = "local",
    preset: str = "standard",
    threads: int | None = None,
    cores: tuple[int, ...] | None = None,
    serials: Sequence[str] = (),
    benchmark_binary: Path | None = None,
    profile: bool = False,
    against: Path | None = None,
    timeout_s: float = 300.0,
    clean: bool = False,
    adb: str = "adb",
    seed: int = 0,
    output: Path | None = None,
    runs_dir: Path = Path("runs"),
    progress: Progress = NO_PROGRESS,
) -> BenchResult:
    """Measures files, or the exported files of a run (the latest when nothing is given).

    Files are compared with the first, those of a run with its dense network. What can be known to be
    wrong is found before anything is measured.

    Args:
        what: Paths of `.onnx` and `.tflite` files, one run, or one directory `export` wrote.
        device: A name of `edgecompress list devices`, or the path of a device file.
        preset: `quick`, `standard` or `mlperf`.
        threads: Of the runtime; one when None.
        cores: To run on; when None the fastest, or those of `against`; not pinned when empty.
        serials: Phones to measure on at the same time; `all` for every one attached.
        benchmark_binary: Google's `benchmark_model` for the phone.
        profile: Also measure the time per operator, in a pass of its own.
        against: An earlier `bench.json` to compare with, by name of the file.
        timeout_s: Of one call to the device.
        clean: Remove what was pushed to the device afterwards.
        adb: Program that reaches phones.
        seed: Of the order of measurements.
        output: Where to write the result; when None `bench-DEVICE.json` in the run, for files nowhere.
        runs_dir: Where runs are kept.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option is wrong, or a file or device does not work.
    """
    asked, chosen = load_device(device), pick_preset(preset)
    drivers = {name: pick(discover(devices, Driver), name, what="driver") for name in asked.drivers}
    suffixes = list(dict.fromkeys(suffix for driver in drivers.values() for suffix in driver.suffixes))
    found = find_files(what, runs_dir, suffixes)
    target = output or (None if found.home is None else found.home / f"bench-{asked.name}.json")
    _check_writable(target)
    options = Options(
        threads=threads,
        cores=cores,
        benchmark_binary=benchmark_binary,
        timeout_s=timeout_s,
        clean=clean,
        clean_runner=clean,
        adb=adb,
    )
    shared = _Work(asked, drivers, options, found.files, {}, chosen, seed, profile)
    chosen_serials = device_serials(asked, serials, adb)
    work = [replace(shared, options=replace(options, serial=serial)) for serial in chosen_serials]
    work = work if against is None else _with_earlier(work, read_record(against, BenchResult), against)
    benches = at_once(_measured, work, names=[one.name for one in work], progress=progress)
    result = BenchResult(
        preset=chosen.name,
        score=chosen.score,
        device=device,
        seed=seed,
        created=datetime.now(UTC),
        versions=installed_versions(),
        benches=tuple(benches),
        earlier=tuple(_comparisons_with_earlier(work, benches)),
        written=None if target is None else str(target),
    )
    if target is not None:
        write_record(target, result, indent=None)  # it holds every latency
    return result


@dataclass(frozen=True)
class _Work:
    """What is measured on one device."""

    device: Device
    drivers: Mapping[str, Driver]
    options: Options
    files: tuple[BenchFile, ...]
    earlier: Mapping[str, Measurement]
    """By name of the file: measured before on this device, to compare with."""
    preset: Preset
    seed: int
    profile: bool

    @property
    def name(self) -> str:
        """What tells the device from others."""
        return self.options.serial or self.device.name


def _check_writable(target: Path | None) -> None:
    """Finds out before the long work whether the result can be written."""
    if target is None:
        return
    if target.is_dir():
        raise ConfigError(f"--output {target}: is a directory; give the name of a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise ArtefactError(f"{target}: cannot be written: {error.strerror or error}") from None


def device_serials(device: Device, asked: Sequence[str], adb: str) -> list[str | None]:
    """Returns the phones that are meant; None for the one that is attached, or where serials mean nothing.

    Raises:
        ConfigError: serials are given for a device that has none.
    """
    if not asked:
        return [None]
    if "adb" not in (*device.drivers, device.transport):
        raise ConfigError(f"--serial: {device.name} is not reached over adb; leave it out")
    if ALL not in asked:
        return list(dict.fromkeys(asked))
    from edgecompress.devices.adb import serials

    return list(serials(adb)) or [None]  # where none is ready, the driver knows what to say


def _measured(work: _Work, progress: Progress) -> DeviceBench:
    with _sessions(work) as sessions:
        _check_conditions(work, sessions)
        measurements = measure(
            [(one.path, sessions[one.path.suffix]) for one in work.files],
            work.preset,
            seed=work.seed,
            profile=work.profile,
            progress=progress,
        )
    if work.profile:
        measurements = tuple(map(_told_of_operators, measurements))
    return DeviceBench(
        device=work.name,
        measurements=measurements,
        comparisons=tuple(_comparisons(work.files, measurements)),
    )


@contextlib.contextmanager
def _sessions(work: _Work) -> Iterator[dict[str, Session]]:
    """Opens one session per driver needed; yields them by suffix of the files they run."""
    with contextlib.ExitStack() as stack:
        opened: dict[str, Session] = {}
        for driver in work.drivers.values():
            own = {one.path.suffix for one in work.files} & set(driver.suffixes) - set(opened)
            if own:
                session = stack.enter_context(driver.open(work.device, work.options))
                opened |= dict.fromkeys(own, session)
        yield opened


def _told_of_operators(one: Measurement) -> Measurement:
    """Adds a note where there are no operators though they were asked for."""
    if one.operators:
        return one
    note = f"no time per operator: {one.conditions.runtime} does not tell"
    return one.model_copy(update={"notes": (*one.notes, note)})


def _comparisons(files: Sequence[BenchFile], found: Sequence[Measurement]) -> Iterator[Comparison]:
    for one, measured in zip(files, found, strict=True):
        if one.baseline is not None:
            first = found[one.baseline]
            names = (first.file.name, measured.file.name)
            yield compare(first.bursts, measured.bursts, names=names, paired=True)


def _with_earlier(work: Sequence[_Work], before: BenchResult, path: Path) -> list[_Work]:
    """Gives each device what was measured on it before, and the cores that was measured on.

    Raises:
        ConfigError: no file of these names was.
    """
    old = {bench.device: {one.file.name: one for one in bench.measurements} for bench in before.benches}
    known = [_on_the_same_cores(replace(one, earlier=old.get(one.name, {}))) for one in work]
    if not any(name in one.earlier for one in known for name in _file_names(one)):
        held = ", ".join(f"{name} on {device}" for device, files in old.items() for name in files)
        wanted = ", ".join(f"{name} on {one.name}" for one in work for name in _file_names(one))
        raise ConfigError(f"--against {path}: holds {held}; nothing to compare with {wanted}")
    return known


def _on_the_same_cores(work: _Work) -> _Work:
    """Else a machine with equal cores takes the idlest, which is another one every time."""
    found = [work.earlier[name].conditions.cores for name in _file_names(work) if name in work.earlier]
    if work.options.cores is not None or not found:
        return work
    return replace(work, options=replace(work.options, cores=found[0]))


def _file_names(work: _Work) -> list[str]:
    return shortest_names([one.path for one in work.files])


def _check_conditions(work: _Work, sessions: Mapping[str, Session]) -> None:
    for name, one in zip(_file_names(work), work.files, strict=True):
        if name in work.earlier:
            check_alike(work.earlier[name].conditions, sessions[one.path.suffix].conditions)


def _comparisons_with_earlier(work: Sequence[_Work], benches: Sequence[DeviceBench]) -> Iterator[Comparison]:
    for one, bench in zip(work, benches, strict=True):
        where = f" on {bench.device}" if len(benches) > 1 else ""
        for now in bench.measurements:
            before = one.earlier.get(now.file.name)
            if before is not None:
                names = (f"{now.file.name} before{where}", f"{now.file.name}{where}")
                yield compare(before.bursts, now.bursts, names=names, paired=False)
