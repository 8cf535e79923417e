"""The machine this program runs on: what it is, its state now, and on which cores we run.

Linux tells all of it in `/proc` and `/sys`; elsewhere what is not known is left out and nothing is pinned.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from edgecompress.core.measurement import Conditions, Environment
from edgecompress.errors import DeviceError

_ROOT = Path("/")
_LOOK_S = 0.2
"""How long to watch the cores to tell the busy ones; the kernel counts in steps of 10 ms."""


def conditions(*, runtime: str, version: str, threads: int, cores: tuple[int, ...]) -> Conditions:
    """Returns the conditions of whatever this machine measures."""
    return Conditions(
        device=processor(),
        build=f"{platform.system()} {platform.release()}",
        runtime=runtime,
        runtime_version=version,
        threads=threads,
        cores=cores,
        governor=governor(cores[0] if cores else 0),
        provenance="measured",
    )


def environment(cores: tuple[int, ...]) -> Environment:
    """Returns the state of this machine now."""
    return Environment(
        temperatures_c=temperatures_c(),
        clock_mhz=clock_mhz(cores[0] if cores else 0),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def processor(root: Path = _ROOT) -> str:
    """Returns the processor's name; on boards that do not tell, the board's."""
    fields = [line.partition(":") for line in _read(root / "proc/cpuinfo").splitlines()]
    named = {key.strip().lower(): value.strip() for key, _, value in fields}
    return named.get("model name") or named.get("model") or platform.processor() or platform.machine()


def governor(core: int, root: Path = _ROOT) -> str | None:
    """Returns what rules the clock of a core, as `performance`; None in most virtual machines."""
    return _read(root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor").strip() or None


def clock_mhz(core: int, root: Path = _ROOT) -> float | None:
    """Returns the clock of a core now; in a virtual machine it is the nominal one."""
    khz = _read(root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").strip()
    if khz.isdigit():
        return int(khz) / 1000
    clocks = [line for line in _read(root / "proc/cpuinfo").splitlines() if line.startswith("cpu MHz")]
    return float(clocks[core].partition(":")[2]) if core < len(clocks) else None


def temperatures_c(root: Path = _ROOT) -> dict[str, float]:
    """Returns the sensors of the kernel's thermal zones by name; empty where there are none."""
    found: dict[str, float] = {}
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        value = _read(zone / "temp").strip()
        if value.lstrip("-").isdigit() and value != "0":  # 0: the sensor is asleep
            kind = _read(zone / "type").strip() or zone.name
            found[f"{kind} ({zone.name})" if kind in found else kind] = int(value) / 1000
    return found


def _read(path: Path) -> str:
    """Returns a file of the kernel, empty where it has none; some exist and refuse to be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def choose_cores(
    threads: int, *, asked: tuple[int, ...] | None = None, preferred: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Returns the cores to run on: those asked for, else the least busy, one per thread.

    `preferred` are those the device's file names. Empty: not pinned, as asked or as the system has it.

    Raises:
        DeviceError: a core is not there or not for us, or there are fewer cores than threads.
    """
    allowed = _allowed()
    for core in (*(asked or ()), *preferred):
        if core not in allowed:
            known = ", ".join(map(str, sorted(allowed))) or "none, this system does not pin"
            raise DeviceError(f"this machine: core {core} may not be used; allowed are: {known}")
    if asked is not None or not allowed:
        return tuple(sorted(asked or ()))
    cores = sorted(preferred or allowed)
    if threads > len(cores):
        raise DeviceError(f"this machine: {threads} threads for {len(cores)} cores; ask for fewer threads")
    busy = busy_shares()
    return tuple(sorted(sorted(cores, key=lambda core: busy.get(core, 0.0))[:threads]))


def _allowed() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set()


@contextlib.contextmanager
def pinned(cores: tuple[int, ...]) -> Iterator[None]:
    """Keeps the calling thread, and threads it starts, on these cores; afterwards all is as before."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def busy_shares(seconds: float = _LOOK_S) -> dict[int, float]:
    """Returns for every core which share of the next `seconds` it was busy; empty where unknown."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    passed = {core: (after[core][0] - before[core][0], after[core][1] - before[core][1]) for core in before}
    return {core: 1 - idle / total for core, (idle, total) in passed.items() if total > 0}


def _ticks(root: Path = _ROOT) -> dict[int, tuple[int, int]]:
    """Returns idle and all ticks of every core since the machine started."""
    ticks: dict[int, tuple[int, int]] = {}
    for line in _read(root / "proc/stat").splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name != "cpu":
            numbers = [int(count) for count in counts[:8]]  # the rest is already within user and nice
            ticks[int(name[3:])] = (numbers[3] + numbers[4], sum(numbers))
    return ticks
