"""Our runner on a board: putting it there, the words that start it, and what it prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgecompress.core.caches import cache_directory
from edgecompress.core.store import sha256_of
from edgecompress.devices.android import taskset_mask
from edgecompress.devices.benchmark_model import last_line
from edgecompress.devices.contract import BurstSize
from edgecompress.devices.native.build import (
    BOARD_MACHINE,
    LIBRARY,
    RUNNER,
    Built,
    find_built,
)
from edgecompress.devices.transport import Done, Transport
from edgecompress.errors import DeviceError, ExportError

SHORT_TIMEOUT_S = 30.0
"""Of commands that do nothing but look."""
SHARE_OF_TIMEOUT = 0.9
"""The runner ends itself after this share: one we gave up on would go on and disturb what follows."""
NEEDS = "it needs a 64-bit system with glibc 2.34 or newer, as Debian 12"
FAULT_OF_MODEL, OUT_OF_TIME = 1, 4
"""Exit codes of the runner (native/network.h)."""


@dataclass(frozen=True)
class Result:
    """What one process of the runner printed."""

    init_ms: float
    first_ms: float
    samples_ms: tuple[float, ...]
    interference: float | None
    fully_delegated: bool


def command(
    runner: str, graph: str, *, threads: int, cores: Sequence[int], size: BurstSize, timeout_s: float
) -> tuple[str, ...]:
    """Returns the words that measure a file, pinned to `cores` if there are any."""
    words = (
        runner,
        f"--graph={graph}",
        f"--num_runs={size.min_runs}",
        f"--min_secs={size.min_seconds:g}",
        f"--warmup_secs={size.warmup_seconds:g}",
        f"--max_secs={SHARE_OF_TIMEOUT * timeout_s:g}",
        f"--num_threads={threads}",
        "--raw",
    )
    return ("taskset", taskset_mask(cores), *words) if cores else words


def read_result(done: Done, *, file: str, where: str) -> Result:
    """Returns what the runner printed, or says why it failed.

    Raises:
        ExportError: the file cannot be read or run.
        DeviceError: the runner itself cannot run, took too long, or was killed.
    """
    if done.code == 0:
        return _parse(done.out, where=where)
    said = last_line(done.err)
    own = said.removeprefix(f"{RUNNER}: ")
    if done.code == 132:
        raise DeviceError(f"{where}: the runner uses instructions this processor lacks")
    if done.code == 137:
        raise DeviceError(f"{where}: the runner was killed with {file!r}; end other programs to free memory")
    if done.code > 128:
        raise ExportError(f"{file}: the runner crashed with it on {where} (signal {done.code - 128})")
    if own == said:  # not from the runner but from what should have started it
        raise DeviceError(f"{where}: the runner does not start: {said}; {NEEDS}")
    if done.code == OUT_OF_TIME:
        raise DeviceError(f"{where}: {file!r} {own}; give it more time or ask for fewer runs")
    if done.code == FAULT_OF_MODEL:
        raise ExportError(f"{file}: cannot be run on {where}: {own}")
    raise DeviceError(f"{where}: the runner failed: {own}")


def _parse(out: str, *, where: str) -> Result:
    timings = re.search(rf"^Inference timings in us: Init: {_US}, First inference: {_US}", out, re.M)
    samples_ms = tuple(float(us) / 1e3 for us in re.findall(rf"^sample_us={_US}$", out, re.M))
    if timings is None or not samples_ms or min(samples_ms) <= 0:
        raise DeviceError(f"{where}: the runner's timings are missing or cut off: {last_line(out)}")
    shares = re.search(rf"^cpu_us={_US} wall_us={_US}$", out, re.M)
    busy = None if shares is None or not float(shares[2]) else float(shares[1]) / float(shares[2])
    return Result(
        init_ms=float(timings[1]) / 1e3,
        first_ms=float(timings[2]) / 1e3,
        samples_ms=samples_ms,
        interference=None if busy is None else max(0.0, 1 - busy),
        fully_delegated="\nfully_delegated=1\n" in out,
    )


_US = r"(\d{1,15}(?:\.\d{1,15})?)"


def prepared_runner(machine: str, *, name: str, where: str) -> Built:
    """Returns the runner that was prepared for a machine; `name` is the device's, for the advice.

    Raises:
        DeviceError: none was, or none can be.
    """
    built = find_built(cache_directory(), machine=machine)
    if built is None:
        if machine.startswith("arm"):
            raise DeviceError(f"{where}: its system is a 32-bit one ({machine}); {NEEDS}")
        option = "" if machine == BOARD_MACHINE else f" --machine {machine}"
        raise DeviceError(
            f"{where}: no runner for {machine} was prepared; run `edgecompress device prepare {name}{option}`"
        )
    return built


def pinnable(
    transport: Transport, wanted: tuple[int, ...], *, asked: bool
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Returns the cores, or none and a note where this board cannot pin a program to cores.

    Raises:
        DeviceError: it cannot, and the user `asked` for these.
    """
    if not wanted:
        return (), ()
    done = transport.run(["taskset", taskset_mask(wanted), "true"], timeout_s=SHORT_TIMEOUT_S)
    if done.code == 0:
        return wanted, ()
    said = last_line(done.err + done.out)
    if asked:
        raise DeviceError(f"{transport.where}: cannot pin to cores {list(wanted)}: {said}; omit --cores")
    return (), (f"not pinned to cores: {said}",)


def make_home(transport: Transport, candidates: Sequence[str]) -> str:
    """Makes our folder on the board: the first of the candidates that can be written.

    Raises:
        DeviceError: none can.
    """
    script = 'mkdir -p "$0" && [ -w "$0" ]'
    for folder in candidates:
        done = transport.run(["sh", "-c", script, folder], timeout_s=SHORT_TIMEOUT_S)
        if done.code == 0:
            return folder
    raise DeviceError(
        f"{transport.where}: no folder can be written of {', '.join(candidates)}: {last_line(done.err)}"
    )


def place_runner(transport: Transport, built: Built, home: str, *, timeout_s: float) -> str:
    """Pushes the runner and its library unless they are there; returns the runner's path.

    Raises:
        DeviceError: the board has no room, refuses, or is gone.
    """
    folder = f"{home}/runner-{sha256_of(built.runner)[:12]}-{sha256_of(built.library)[:12]}"
    runner = f"{folder}/{RUNNER}"
    if transport.run(["test", "-x", runner], timeout_s=SHORT_TIMEOUT_S).code != 0:
        run_checked(transport, "mkdir", "-p", folder)
        transport.push(built.library, f"{folder}/{LIBRARY}", timeout_s=timeout_s)
        transport.push(built.runner, runner, timeout_s=timeout_s)
        run_checked(transport, "chmod", "755", runner)  # last: what may be run has its library
    return runner


def run_checked(transport: Transport, *command: str) -> str:
    """Returns what a short command prints.

    Raises:
        DeviceError: it fails.
    """
    done = transport.run(command, timeout_s=SHORT_TIMEOUT_S)
    if done.code != 0:
        said = last_line(done.err + done.out)
        raise DeviceError(f"{transport.where}: `{command[0]}` failed: {said}")
    return done.out
