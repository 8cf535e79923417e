"""Linux boards: our own runner on LiteRT, pushed over ssh or adb, one process per burst."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from edgecompress.core.device import Device
from edgecompress.core.measurement import Burst, Conditions, Environment, OpTime
from edgecompress.core.store import sha256_of
from edgecompress.devices.board_facts import describe, pick_cores, read_board, read_environment, unrest
from edgecompress.devices.board_runner import (
    Result,
    command,
    make_home,
    pinnable,
    place_runner,
    prepared_runner,
    read_result,
    run_checked,
)
from edgecompress.devices.contract import BurstSize, Driver, Loaded, Options, Session
from edgecompress.devices.transport import Transport
from edgecompress.errors import DeviceError, ExportError

ONCE = BurstSize(min_runs=1, min_seconds=0.0, warmup_seconds=0.0)
POLL_S = 2.0
ADB_HOMES = ("/data/local/tmp/edgecompress", "/tmp/edgecompress")
OWN_FILE = 'write devices/NAME.toml with title, drivers = ["board"] and host = "user@address"'


@dataclass(frozen=True)
class BoardSession:
    """An open board; every burst is a process of its own."""

    transport: Transport
    conditions: Conditions
    runner: str
    """Path of the runner on the board."""
    folder: str
    """Of this session on the board."""
    timeout_s: float
    settle_s: float
    notes: tuple[str, ...] = ()
    fresh_process: bool = True
    _opened_s: float = field(default_factory=time.monotonic)
    _remote: dict[Path, str] = field(default_factory=dict)

    def load(self, file: Path) -> Loaded:
        """Pushes a file and runs it once.

        Raises:
            ExportError: the file cannot be read or run.
            DeviceError: the board does not answer or has no room.
        """
        try:
            remote = f"{self.folder}/{sha256_of(file)[:16]}.tflite"
        except OSError as error:
            raise ExportError(f"{file}: cannot be read: {error.strerror or error}") from None
        self.transport.push(file, remote, timeout_s=self.timeout_s)
        self._remote[file] = remote
        result = self._measure(file, ONCE)
        outside = () if result.fully_delegated else ("XNNPACK does not run all operators of this file",)
        return Loaded(result.init_ms, result.first_ms, self.notes + outside)

    def burst(self, file: Path, size: BurstSize) -> Burst:
        """Runs a loaded file in a process of its own.

        Raises:
            ExportError: the file fails while it runs.
            DeviceError: the board does not answer.
        """
        started_s = time.monotonic() - self._opened_s
        result = self._measure(file, size)
        samples_ms = result.samples_ms
        return Burst(
            started_s=started_s,
            runs=len(samples_ms),
            samples_ms=samples_ms,
            median_ms=statistics.median(samples_ms),
            mean_ms=statistics.fmean(samples_ms),
            std_ms=statistics.pstdev(samples_ms),
            min_ms=min(samples_ms),
            max_ms=max(samples_ms),
            interference=result.interference,
        )

    def environment(self) -> Environment:
        """Returns the state of the board now."""
        return read_environment(self.transport, self.conditions.cores)

    def settle(self) -> tuple[str, ...]:
        """Waits until the board is cool and idle enough."""
        until_s = time.monotonic() + self.settle_s
        while (reason := unrest(self.environment(), threads=self.conditions.threads)) is not None:
            if time.monotonic() >= until_s:
                return (f"still {reason} after {self.settle_s:g} s",)
            time.sleep(min(POLL_S, self.settle_s / 10))
        return ()

    def profile(self, file: Path) -> tuple[OpTime, ...]:
        """Returns nothing: the runner does not time single operators."""
        return ()

    def _measure(self, file: Path, size: BurstSize) -> Result:
        words = command(
            self.runner,
            self._remote[file],
            threads=self.conditions.threads,
            cores=self.conditions.cores,
            size=size,
            timeout_s=self.timeout_s,
        )
        done = self.transport.run(words, timeout_s=self.timeout_s)
        return read_result(done, file=file.name, where=self.transport.where)


@contextlib.contextmanager
def open_session(device: Device, options: Options) -> Iterator[Session]:
    """Reaches a board, reads what it is, and puts the runner on it unless it is there.

    Raises:
        ConfigError: the device file has no usable host.
        DeviceError: the board does not answer, or no runner was prepared for it.
    """
    with _connect(device, options) as transport:
        board = read_board(transport)
        built = prepared_runner(board.machine, name=device.name, where=transport.where)
        threads = options.threads or device.threads
        wanted = pick_cores(board, device, asked=options.cores, threads=threads)
        cores, notes = pinnable(transport, wanted, asked=bool(options.cores))
        conditions = Conditions(
            device=describe(board, cores),
            build=board.kernel,
            runtime="litert-runner",
            runtime_version=built.litert_version,
            threads=threads,
            cores=cores,
            governor=board.governors.get(cores[0]) if cores else None,
            provenance="measured",
        )
        home = make_home(transport, ADB_HOMES if device.transport == "adb" else _own_homes(transport))
        runner = place_runner(transport, built, home, timeout_s=options.timeout_s)
        with _folder_of_session(transport, home) as folder:
            yield BoardSession(
                transport, conditions, runner, folder, options.timeout_s, options.settle_s, notes
            )


def _own_homes(transport: Transport) -> tuple[str, str]:
    """Returns where the user's own files may lie on a board: the cache, or a temporary folder."""
    script = 'echo "${XDG_CACHE_HOME:-$HOME/.cache}"; id -u'
    told = run_checked(transport, "sh", "-c", script).splitlines()
    if len(told) != 2 or not told[1].isdecimal():
        raise DeviceError(f"{transport.where}: does not say who its user is: {' '.join(told)[:80]!r}")
    return f"{told[0]}/edgecompress", f"/tmp/edgecompress-{told[1]}"


@contextlib.contextmanager
def _folder_of_session(transport: Transport, home: str) -> Iterator[str]:
    """Makes a folder for the files of one session, and removes it: a board's card is small."""
    folder = f"{home}/session-{secrets.token_hex(6)}"
    run_checked(transport, "mkdir", folder)
    try:
        yield folder
    finally:
        with contextlib.suppress(DeviceError):  # it may be gone, and what went wrong before matters more
            run_checked(transport, "rm", "-rf", folder)


def _connect(device: Device, options: Options) -> AbstractContextManager[Transport]:
    if device.transport == "adb":
        from edgecompress.devices.adb_transport import AdbTransport, choose, list_attached

        serial = options.serial or device.serial
        chosen = choose(list_attached(options.adb), serial=serial, match=device.match)
        return contextlib.nullcontext(AdbTransport(options.adb, chosen.serial))
    from edgecompress.devices.ssh_transport import connected

    if device.host is None:
        raise DeviceError(f"{device.name}: its device file has no host; {OWN_FILE}")
    return connected(device.host, device.port)


DRIVER = Driver(
    name="board",
    summary="Linux boards such as a Raspberry Pi, with our own LiteRT runner over ssh",
    suffixes=(".tflite",),
    open=open_session,
)
