"""What a Linux board says of itself: its name and system, its cores, how warm and how busy it is.

Everything is read without root, in one call, and anything may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgecompress.core.device import Device
from edgecompress.core.measurement import Environment
from edgecompress.devices.android import (
    CORE_FILES,
    CPU,
    PARTS,
    ZONES,
    Core,
    fastest,
    parse_cores,
    taskset_mask,
)
from edgecompress.devices.thermal import parse_zones
from edgecompress.devices.transport import Transport
from edgecompress.errors import DeviceError

TIMEOUT_S = 30.0
"""Of one question; most of it is the connection."""
FACTS = (
    "uname -sr; uname -m; tr -d '\\000' </proc/device-tree/model; echo; "
    f"grep -Hs . {CORE_FILES} {CPU}/cpu[0-9]*/cpufreq/scaling_governor; true"
)
WORK = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done"
"""Some tenths of a second, in which the clock of an idle core rises to where measuring finds it."""
LIMIT_C = 65.0
"""Boards begin to slow down at about 80 °C: what starts below this has room to warm up."""


@dataclass(frozen=True)
class Board:
    """What does not change while a board is running."""

    title: str
    """As `Raspberry Pi 5 Model B Rev 1.0`; the processor where the board has no name."""
    kernel: str
    """As `Linux 6.6.31`."""
    machine: str
    """As `aarch64`."""
    cores: tuple[Core, ...]
    governors: dict[int, str]
    """By core; what decides on its clock, as `ondemand`."""


def read_board(transport: Transport) -> Board:
    """Asks a board for what does not change.

    Raises:
        DeviceError: it does not answer, or not as Linux does.
    """
    told = transport.run(["sh", "-c", FACTS], timeout_s=TIMEOUT_S).out
    lines = told.splitlines()
    if len(lines) < 3 or not lines[0].startswith("Linux"):
        said = lines[0][:80] if lines else ""
        raise DeviceError(f"{transport.where}: does not answer as a Linux board: {said!r}")
    kernel, machine, model = (line.strip() for line in lines[:3])
    governors = re.findall(r"/cpu(\d{1,4})/cpufreq/scaling_governor:(\S+)", told)
    return Board(
        title=model or _processor(told) or machine,
        kernel=kernel,
        machine=machine,
        cores=parse_cores(told),
        governors={int(core): name for core, name in governors},
    )


def describe(board: Board, cores: Sequence[int]) -> str:
    """Returns the board's name with the kind of the cores in use, as `Raspberry Pi 5 (Cortex-A76)`."""
    parts = {core.part for core in board.cores if core.part and (not cores or core.number in cores)}
    names = sorted(PARTS[part] for part in parts if part in PARTS)
    return f"{board.title} ({', '.join(names)})" if names else board.title


def pick_cores(board: Board, device: Device, *, asked: Sequence[int] | None, threads: int) -> tuple[int, ...]:
    """Returns the cores to measure on; empty: let the board decide.

    That is what was asked for, else as many of the cluster the device file names as there are
    threads, else of the fastest. Of cores alike the last: the first one handles most interrupts.

    Raises:
        DeviceError: the board has no such core.
    """
    known = [core.number for core in board.cores]
    chosen: Sequence[int]
    if asked is not None:
        chosen = asked
    elif device.cluster is not None:
        chosen = device.cores[-threads:]
    else:
        chosen = fastest(board.cores, threads) or (device.cores or known)[-threads:]
    missing = sorted(set(chosen) - set(known)) if known else []
    if missing:
        raise DeviceError(f"{board.title}: has no cores {missing}; it has: {known}")
    return tuple(sorted(set(chosen)))


def read_environment(transport: Transport, cores: Sequence[int]) -> Environment:
    """Returns the state of the board now; the clock is that of the first of `cores` under load.

    Raises:
        DeviceError: it does not answer.
    """
    core = cores[0] if cores else 0
    files = f"/proc/loadavg {CPU}/cpu{core}/cpufreq/scaling_cur_freq"
    pinned = ("taskset", taskset_mask([core])) if cores else ()
    script = f"{ZONES}; {WORK}; grep -Hs . {files}"
    told = transport.run([*pinned, "sh", "-c", script], timeout_s=TIMEOUT_S).out
    load = re.search(r"/proc/loadavg:(\d{1,9}\.\d+)", told)
    clock = re.search(r"/scaling_cur_freq:(\d{1,9})\b", told)
    return Environment(
        temperatures_c=parse_zones(told).temperatures_c,
        clock_mhz=None if clock is None else int(clock[1]) / 1e3,
        load=None if load is None else float(load[1]),
    )


def unrest(environment: Environment, *, threads: int) -> str | None:
    """Returns why a board should rest before it is measured, as `at 70.0 °C (cpu-thermal)`, or None.

    Our own runs leave a load of up to the number of threads for a minute; more is somebody else's.
    """
    warm = environment.temperatures_c
    name = max(warm, key=lambda one: warm[one], default=None)
    if name is not None and warm[name] > LIMIT_C:
        return f"at {warm[name]:.1f} °C ({name})"
    if environment.load is not None and environment.load > threads + 0.5:
        return f"busy with other programs (load {environment.load:.1f})"
    return None


def _processor(told: str) -> str | None:
    match = re.search(r"cpuinfo:(?:Model|model name|Hardware)\s*: (.+)", told)
    return None if match is None else match[1].strip()
