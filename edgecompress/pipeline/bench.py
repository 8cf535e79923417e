"""`edgecompress bench`: measures files on a device, in turns, and says what is faster and how surely."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from edgecompress.devices.protocol import measure
from edgecompress.errors import ConfigError
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

    Args:
        what: Paths of `.onnx` and `.tflite` files, or one run.
        device: A name of `edgecompress list devices`, or the path of a device file.
        preset: `quick`, `standard` or `mlperf`.
        threads: Of the runtime; one when None.
        cores: To run on; the fastest when None, not pinned when empty.
        serials: Phones to measure on at the same time; `all` for every one attached.
        benchmark_binary: Google's `benchmark_model` for the phone.
        profile: Also measure the time per operator, in a pass of its own.
        against: An earlier `bench.json` to compare with, by name of the file.
        timeout_s: Of one call to the device.
        clean: Remove what was pushed to the device afterwards.
        adb: Program that reaches phones.
        seed: Of the order of measurements.
        output: Where to write the result; `bench-DEVICE.json` in the run when None.
        runs_dir: Where runs are kept.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option is wrong, or a file or device does not work.
    """
    asked, chosen = load_device(device), pick_preset(preset)
    drivers = {name: pick(discover(devices, Driver), name, what="driver") for name in asked.drivers}
    suffixes = list(dict.fromkeys(suffix for driver in drivers.values() for suffix in driver.suffixes))
    found = find_files(what, runs_dir, suffixes)
    before = None if against is None else read_record(against, BenchResult)
    options = Options(
        threads=threads,
        cores=cores,
        benchmark_binary=benchmark_binary,
        timeout_s=timeout_s,
        clean=clean,
        adb=adb,
    )
    work = [
        _Work(asked, drivers, replace(options, serial=serial), found.files, chosen, seed, profile, progress)
        for serial in _serials(asked, serials, adb)
    ]
    result = BenchResult(
        preset=chosen.name,
        score=chosen.score,
        device=device,
        seed=seed,
        created=datetime.now(UTC),
        versions=installed_versions(),
        benches=tuple(_at_once(work)),
    )
    result = result if before is None else result.model_copy(update={"earlier": _earlier(before, result)})
    target = output or (None if found.run is None else found.run / f"bench-{asked.name}.json")
    if target is not None:
        write_record(target, result)
    return result


@dataclass(frozen=True)
class _Work:
    device: Device
    drivers: Mapping[str, Driver]
    options: Options
    files: tuple[BenchFile, ...]
    preset: Preset
    seed: int
    profile: bool
    progress: Progress


def _serials(device: Device, asked: Sequence[str], adb: str) -> list[str | None]:
    if not asked:
        return [None]
    if "adb" not in device.drivers:
        raise ConfigError(f"--serial: {device.name} is not reached over adb; leave it out")
    if ALL not in asked:
        return list(dict.fromkeys(asked))
    from edgecompress.devices.adb import serials

    return list(serials(adb))


def _at_once(work: Sequence[_Work]) -> list[DeviceBench]:
    """Measures on all devices at the same time, one worker each."""
    if len(work) == 1:
        return [_measured(work[0])]
    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(_measured, work))


def _measured(work: _Work) -> DeviceBench:
    with _sessions(work) as sessions:
        measurements = measure(
            [(one.path, sessions[one.path.suffix]) for one in work.files],
            work.preset,
            seed=work.seed,
            profile=work.profile,
            progress=work.progress,
        )
    return DeviceBench(
        device=work.options.serial or work.device.name,
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


def _comparisons(files: Sequence[BenchFile], found: Sequence[Measurement]) -> Iterator[Comparison]:
    for one, measured in zip(files, found, strict=True):
        if one.baseline is not None:
            first = found[one.baseline]
            names = (first.file.name, measured.file.name)
            yield compare(first.bursts, measured.bursts, names=names, paired=True)


def _earlier(before: BenchResult, now: BenchResult) -> tuple[Comparison, ...]:
    """Compares each file with the one of its name measured before on the same device.

    Raises:
        ConfigError: none is in both, or the conditions were not alike.
    """
    old = {(bench.device, one.file.name): one for bench in before.benches for one in bench.measurements}
    pairs = [
        (old[key], one)
        for bench in now.benches
        for one in bench.measurements
        if (key := (bench.device, one.file.name)) in old
    ]
    if not pairs:
        raise ConfigError("--against: holds no file of these names on this device; measure them first")
    for was, is_now in pairs:
        check_alike(was.conditions, is_now.conditions)
    return tuple(
        compare(was.bursts, now.bursts, names=(f"{was.file.name} before", now.file.name), paired=False)
        for was, now in pairs
    )
