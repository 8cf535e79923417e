"""What a driver is: it opens a session on a device, and the session runs files in bursts.

A session makes no statistics and decides nothing: `devices/protocol.py` asks it for bursts in the
right order, and what comes of them is computed in one place for all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgecompress.core.device import Device
from edgecompress.core.measurement import Burst, Conditions, Environment, OpTime


@dataclass(frozen=True)
class Loaded:
    """A file made ready on the device."""

    load_ms: float | None
    first_ms: float | None
    notes: tuple[str, ...] = ()
    """What the runtime said that matters, as operators left outside the delegate."""


@dataclass(frozen=True)
class BurstSize:
    """How long a burst should be: both limits must be reached."""

    min_runs: int
    min_seconds: float
    warmup_seconds: float
    """Runs that are not counted, before the first counted one; may be 0."""


class Session(Protocol):
    """An open connection to a device. One file per call, never two at once."""

    @property
    def conditions(self) -> Conditions:
        """What holds for everything measured in this session."""

    @property
    def fresh_process(self) -> bool:
        """Whether every burst starts a new process, which costs time and needs its own warm-up."""

    def load(self, file: Path) -> Loaded:
        """Makes a file ready: reads or pushes it, and runs it once. Again: drops it and starts anew.

        Raises:
            ExportError: the runtime cannot read or run the file.
            DeviceError: the device does not answer or has no room.
        """

    def burst(self, file: Path, size: BurstSize) -> Burst:
        """Runs a loaded file; `started_s` counts from the opening of the session.

        Raises:
            ExportError: the file fails while it runs.
            DeviceError: the device does not answer.
        """

    def environment(self) -> Environment:
        """Returns the state of the device now."""

    def settle(self) -> tuple[str, ...]:
        """Waits until the device is cool and idle enough; returns what a reader should know, as
        `still at 41.0 °C after 120 s`."""

    def profile(self, file: Path) -> tuple[OpTime, ...]:
        """Returns the time per operator of a loaded file from a pass of its own; empty if unknown."""


@dataclass(frozen=True)
class Options:
    """What a user may ask of any session."""

    threads: int | None = None
    """None: as the device file says."""
    cores: tuple[int, ...] | None = None
    """None: the device's fastest; empty: do not pin."""
    serial: str | None = None
    benchmark_binary: Path | None = None
    timeout_s: float = 300.0
    """Of one call to the device."""
    settle_s: float = 120.0
    """How long to wait at most for a hot device before measuring all the same."""
    clean: bool = False
    """Remove what was measured from the device when the session ends; the runner is pushed once and stays."""
    clean_runner: bool = False
    """Remove the runner as well, and whatever else is ours."""
    adb: str = "adb"
    """Program to call."""


@dataclass(frozen=True)
class Driver:
    """A way to run files on a kind of device; each is one file of this package, `DRIVER = Driver(...)`."""

    name: str
    summary: str
    suffixes: tuple[str, ...]
    """Of the files it can run, with the dot."""
    open: Callable[[Device, Options], AbstractContextManager[Session]]
    """Raises:
    DeviceError: there is no such device, it is not authorised, or its runner is missing.
    MissingPackage: a runtime is not installed.
    """
