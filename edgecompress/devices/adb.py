"""Android phones: Google's `benchmark_model`, pushed and run over adb, one process per burst."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edgecompress.core.device import Device
from edgecompress.core.measurement import Burst, Conditions, Environment, OpTime
from edgecompress.devices import android
from edgecompress.devices.adb_transport import AdbTransport, choose, list_attached, list_serials
from edgecompress.devices.benchmark_model import Report, Stretch, command, delegate_notes, last_line, parse
from edgecompress.devices.contract import BurstSize, Driver, Loaded, Options, Session
from edgecompress.devices.phone_files import (
    FOLDER,
    RUNNER,
    SHORT_TIMEOUT_S,
    WHERE_TO_GET_IT,
    make_folder,
    place_model,
    place_runner,
)
from edgecompress.devices.thermal import too_warm
from edgecompress.devices.transport import Done, Transport
from edgecompress.errors import DeviceError, ExportError

PROCESS_FILE = f"{FOLDER}/process"
"""Holds the number of the process that measures."""
SHARE_OF_TIMEOUT = 0.4
"""The runner stops its warm-up and its measurement each after this share: we need not give up on it."""
ONCE = BurstSize(min_runs=1, min_seconds=0.0, warmup_seconds=0.0)
PROFILED = BurstSize(min_runs=20, min_seconds=0.5, warmup_seconds=0.2)
SHORTEST_MS = 0.001
"""The runner counts in whole microseconds, so that 0 means less than one."""
POLL_S = 5.0


@dataclass(frozen=True)
class AdbSession:
    """An open phone; every burst is a process of its own."""

    transport: Transport
    conditions: Conditions
    runner: str
    """Path of the benchmark program on the phone."""
    timeout_s: float
    settle_s: float
    notes: tuple[str, ...] = ()
    fresh_process: bool = True
    _opened_s: float = field(default_factory=time.monotonic)
    _remote: dict[Path, str] = field(default_factory=dict)

    def load(self, file: Path) -> Loaded:
        """Pushes a file unless it is there already, and runs it once.

        Raises:
            ExportError: the file cannot be read or run.
            DeviceError: the device does not answer or has no room.
        """
        self._remote[file] = place_model(self.transport, file, timeout_s=self.timeout_s)
        report = self._measure(file, ONCE)
        return Loaded(report.init_ms, report.first_ms, self.notes + delegate_notes(report))

    def burst(self, file: Path, size: BurstSize) -> Burst:
        """Runs a loaded file in a process of its own; there are no single runs, only their summary.

        Raises:
            ExportError: the file fails while it runs.
            DeviceError: the device does not answer.
        """
        started_s = time.monotonic() - self._opened_s
        stretch = self._measure(file, size).inference
        assert stretch is not None, "a report without timings is an error before this"
        return _burst(stretch, started_s=started_s)

    def environment(self) -> Environment:
        """Returns the state of the phone now."""
        return android.read_environment(self.transport, (self.conditions.cores or (0,))[0])

    def settle(self) -> tuple[str, ...]:
        """Waits until the phone is cool: not throttled, skin and battery below the limit."""
        until_s = time.monotonic() + self.settle_s
        thermal = android.read_thermal(self.transport)
        if thermal.status is None and not thermal.outside_c:
            return ("the phone does not tell whether it is warm",)
        while (reason := too_warm(thermal)) is not None:
            if time.monotonic() >= until_s:
                return (f"still {reason} after {self.settle_s:g} s",)
            time.sleep(min(POLL_S, self.settle_s / 10))
            thermal = android.read_thermal(self.transport)
        return ()

    def profile(self, file: Path) -> tuple[OpTime, ...]:
        """Returns the time per operator of a loaded file; empty where the runner prints no table.

        Raises:
            ExportError: the file fails while it runs.
            DeviceError: the device does not answer.
        """
        return self._measure(file, PROFILED, op_profiling=True).operators

    def _measure(self, file: Path, size: BurstSize, *, op_profiling: bool = False) -> Report:
        words = command(
            self.runner,
            self._remote[file],
            threads=self.conditions.threads,
            min_runs=size.min_runs,
            min_seconds=size.min_seconds,
            warmup_seconds=size.warmup_seconds,
            max_seconds=self.timeout_s * SHARE_OF_TIMEOUT,
            op_profiling=op_profiling,
        )
        cores = self.conditions.cores
        pinned = ("taskset", android.taskset_mask(cores), *words) if cores else words
        done = _run_watched(self.transport, pinned, timeout_s=self.timeout_s)
        return read_report(done, file=file.name, where=self.transport.where)


@contextlib.contextmanager
def open_session(device: Device, options: Options) -> Iterator[Session]:
    """Finds the phone, reads what it is, and makes the benchmark program ready on it.

    Raises:
        DeviceError: there is no such phone, it is not ready, or the program is missing.
    """
    serial = options.serial or device.serial
    chosen = choose(list_attached(options.adb), serial=serial, match=device.match)
    transport = AdbTransport(options.adb, chosen.serial)
    phone = android.read_phone(transport)
    threads = options.threads or device.threads
    wanted = android.pick_cores(phone, device, asked=options.cores, threads=threads)
    cores, notes = _pinnable(transport, wanted, asked=bool(options.cores))
    if not android.is_described(phone, device):
        notes += (f"{phone.title} is not the {device.title} of the device file",)
    make_folder(transport)
    runner, version = place_runner(transport, device, options)
    conditions = Conditions(
        device=phone.title,
        build=phone.build,
        runtime=RUNNER,
        runtime_version=version,
        threads=threads,
        cores=cores,
        governor=android.read_governor(transport, cores[0]) if cores else None,
        provenance="emulated" if phone.emulated else "measured",
    )
    try:
        yield AdbSession(transport, conditions, runner, options.timeout_s, options.settle_s, notes)
    finally:
        if options.clean or options.clean_runner:
            clean(transport, runner=options.clean_runner)


def read_report(done: Done, *, file: str, where: str) -> Report:
    """Returns what the runner printed, or says why there are no timings.

    Raises:
        ExportError: the file cannot be read or run.
        DeviceError: the runner itself cannot run, or was killed.
    """
    text = f"{done.out}\n{done.err}"
    report = parse(text)
    if done.code in (126, 127) or "CANNOT LINK EXECUTABLE" in text:
        raise DeviceError(f"{where}: {RUNNER} does not run here: {last_line(text)}; {WHERE_TO_GET_IT}")
    if done.code == 132:
        raise DeviceError(
            f"{where}: {RUNNER} needs instructions this processor lacks; use another build of it"
        )
    if done.code == 137:
        raise DeviceError(f"{where}: {RUNNER} was killed with {file!r}; close other apps to free memory")
    if done.code > 128:
        said = last_line(text)
        raise ExportError(f"{file}: {RUNNER} crashed with it on {where} (signal {done.code - 128}): {said}")
    if report.failure is not None:
        raise ExportError(f"{file}: {RUNNER} cannot run it on {where}: {report.failure}")
    if done.code != 0 or report.inference is None:
        raise DeviceError(f"{where}: {RUNNER} printed no timings (exit code {done.code}): {last_line(text)}")
    return report


def serials(adb: str = "adb") -> tuple[str, ...]:
    """Returns the serials of all phones that are ready.

    Raises:
        DeviceError: `adb` is missing or cannot start its server.
    """
    return list_serials(adb)


def clean(transport: Transport, *, runner: bool) -> None:
    """Removes files we measured from a phone, or everything of ours, the benchmark program included.

    Raises:
        DeviceError: it does not answer, or refuses.
    """
    script = 'rm -rf "$0"' if runner else 'rm -f "$0"/*.tflite'
    done = transport.run(["sh", "-c", script, FOLDER], timeout_s=SHORT_TIMEOUT_S)
    if done.code != 0:
        raise DeviceError(
            f"{transport.where}: {FOLDER} could not be cleaned: {last_line(done.err + done.out)}"
        )


def _burst(stretch: Stretch, *, started_s: float) -> Burst:
    def at_least(value_ms: float) -> float:
        return max(value_ms, SHORTEST_MS)

    mean_ms = at_least(stretch.mean_ms)
    return Burst(
        started_s=started_s,
        runs=stretch.runs or 1,
        median_ms=None if stretch.median_ms is None else at_least(stretch.median_ms),
        mean_ms=mean_ms,
        std_ms=stretch.std_ms,
        min_ms=mean_ms if stretch.min_ms is None else at_least(stretch.min_ms),
        max_ms=mean_ms if stretch.max_ms is None else at_least(stretch.max_ms),
        p95_ms=None if stretch.p95_ms is None else at_least(stretch.p95_ms),
    )


def _pinnable(
    transport: Transport, wanted: tuple[int, ...], *, asked: bool
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns the cores, or none and a note where this phone cannot pin a program to cores."""
    if not wanted:
        return (), ()
    mask = android.taskset_mask(wanted)
    done = transport.run(["taskset", mask, "true"], timeout_s=SHORT_TIMEOUT_S)
    if done.code == 0:
        return wanted, ()
    said = last_line(done.err + done.out)
    if asked:
        raise DeviceError(f"{transport.where}: cannot pin to cores {list(wanted)}: {said}; omit --cores")
    return (), (f"not pinned to cores: {said}",)


def _run_watched(transport: Transport, words: tuple[str, ...], *, timeout_s: float) -> Done:
    """Runs a command and ends it where it takes too long: adb would leave it running on the phone."""
    try:
        return transport.run(
            ["sh", "-c", 'echo $$ >"$0"; exec "$@"', PROCESS_FILE, *words], timeout_s=timeout_s
        )
    except DeviceError:
        still_ours = 'p=$(cat "$0") && grep -qs "$1" "/proc/$p/cmdline" && kill -9 "$p"'
        with contextlib.suppress(DeviceError):  # it may be gone, and the first error is the one to show
            transport.run(["sh", "-c", still_ours, PROCESS_FILE, RUNNER], timeout_s=SHORT_TIMEOUT_S)
        raise


DRIVER = Driver(
    name="adb",
    summary="Android phones, with Google's benchmark_model over adb",
    suffixes=(".tflite",),
    open=open_session,
)
