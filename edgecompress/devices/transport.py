"""How programs reach a device: push a file, run a command, get its output and exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Done:
    """A command that has ended on the device."""

    code: int
    out: str
    err: str


class Transport(Protocol):
    """A connection to one device, over adb or ssh."""

    @property
    def where(self) -> str:
        """What errors call the device: its serial or address."""

    def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
        """Runs a command given as its words; every word is quoted for the device's shell.

        Raises:
            DeviceError: the device does not answer in time or is gone.
        """

    def push(self, local: Path, remote: str, *, timeout_s: float) -> None:
        """Copies a file; the remote name appears only when it is complete.

        Raises:
            DeviceError: the device has no room, refuses, or is gone.
        """
