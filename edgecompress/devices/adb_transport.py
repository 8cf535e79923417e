"""Phones over `adb`: which are attached, and a transport to one of them.

The device's exit code is read from a line of our own. The client's is of no use: it is always 0 on
Android 6 and older, and it is 0 as well when the cable is pulled in the middle of a command. So a
command without that line did not end.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgecompress.devices.transport import Done
from edgecompress.errors import DeviceError

EXIT_MARK = "edgecompress-exit="
LIST_TIMEOUT_S = 20.0
"""The first call starts adb's server, which may make a key."""
CLEANUP_TIMEOUT_S = 5.0
READY = "device"
ADVICE = {
    "unauthorized": "unlock it and allow USB debugging on its screen",
    "authorizing": "unlock it and allow USB debugging on its screen",
    "connecting": "wait a moment and try again",
    "offline": "unplug and replug it, or run `adb reconnect`",
    "no permissions": "give your user access to USB devices: on Debian, install "
    "android-sdk-platform-tools-common and join the group plugdev",
}
"""What to do about a state other than ready."""


@dataclass(frozen=True)
class Attached:
    """A device as `adb devices -l` lists it."""

    serial: str
    state: str
    """`device` where it is ready."""
    model: str | None = None
    codename: str | None = None
    """Its `ro.product.device`; known only where it is ready."""

    def __str__(self) -> str:
        """Returns `SERIAL (model codename)`, or the state where it is not ready."""
        known = " ".join(name for name in (self.model, self.codename) if name)
        return (
            f"{self.serial} ({known or self.state})"
            if self.state == READY
            else f"{self.serial} ({self.state})"
        )


@dataclass(frozen=True)
class AdbTransport:
    """A connection to one phone; `adb` keeps it open between calls."""

    adb: str
    serial: str

    @property
    def where(self) -> str:
        """Returns the serial."""
        return self.serial

    def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
        """Runs a command given as its words; it finds nothing on its standard input.

        On Android 6 and older its errors come among its output.

        Raises:
            DeviceError: the device does not answer in time or is gone.
        """
        text = f"{shlex.join(command)} </dev/null; echo {EXIT_MARK}$?"
        called = self._call(["shell", text], timeout_s=timeout_s)
        out, _, code = called.stdout.rpartition(EXIT_MARK)
        if not re.fullmatch(r"\d{1,9}", code.strip()):
            raise DeviceError(
                f"{self.serial}: the connection broke during `{command[0]}`{_said(called.stderr)}; "
                "check the cable and try again"
            )
        return Done(int(code), out, called.stderr)

    def push(self, local: Path, remote: str, *, timeout_s: float) -> None:
        """Copies a file to a name of its own, then renames it.

        Raises:
            DeviceError: the device has no room, refuses, or is gone.
        """
        partial = f"{remote}.{secrets.token_hex(4)}.part"
        try:
            self._push(local, partial, timeout_s=timeout_s)
            moved = self.run(["mv", "-f", partial, remote], timeout_s=timeout_s)
            if moved.code != 0:
                raise DeviceError(
                    f"{self.serial}: {remote} could not be written{_said(moved.err or moved.out)}"
                )
        except DeviceError:
            with contextlib.suppress(DeviceError):  # it may be gone, and the first error is the one to show
                self.run(["rm", "-f", partial], timeout_s=CLEANUP_TIMEOUT_S)
            raise

    def _push(self, local: Path, remote: str, *, timeout_s: float) -> None:
        called = self._call(["push", str(local.absolute()), remote], timeout_s=timeout_s)
        if called.returncode == 0:
            return
        said = called.stderr + called.stdout
        if "No space left" in said:
            raise DeviceError(f"{self.serial}: no room for {local.name!r}; free some storage on the device")
        advice = "is it read-only?" if ": remote " in said else "check the cable"
        raise DeviceError(f"{self.serial}: {local.name!r} could not be copied{_said(said)}; {advice}")

    def _call(self, words: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        return _call_adb(self.adb, ["-s", self.serial, *words], timeout_s=timeout_s, where=self.serial)


def list_attached(adb: str) -> tuple[Attached, ...]:
    """Returns what is attached, ready or not.

    Raises:
        DeviceError: `adb` is missing or cannot start its server.
    """
    called = _call_adb(adb, ["devices", "-l"], timeout_s=LIST_TIMEOUT_S, where=adb)
    if called.returncode != 0:
        raise DeviceError(f"{adb}: cannot list devices{_said(called.stderr)}")
    return parse_attached(called.stdout)


def parse_attached(text: str) -> tuple[Attached, ...]:
    """Reads what `adb devices -l` prints."""
    _, _, table = text.partition("List of devices attached\n")
    return tuple(_attached(line) for line in table.splitlines() if line.strip())


def list_serials(adb: str) -> tuple[str, ...]:
    """Returns the serials of the devices that are ready.

    Raises:
        DeviceError: `adb` is missing or cannot start its server.
    """
    return tuple(one.serial for one in list_attached(adb) if one.state == READY)


def choose(attached: Sequence[Attached], *, serial: str | None = None, match: Sequence[str] = ()) -> Attached:
    """Returns the device with that serial, or else the only one whose codename is in `match`.

    Without `match` any codename will do. Devices that are not ready count only where no other is.

    Raises:
        DeviceError: there is none, more than one, or it is not ready.
    """
    if not attached:
        raise DeviceError("adb: no device is attached; connect one and switch on USB debugging on it")
    if serial is not None:
        suited = [one for one in attached if one.serial == serial]
    else:
        suited = [one for one in attached if not match or one.codename in match or one.state != READY]
        suited = [one for one in suited if one.state == READY] or suited
    if not suited:
        wanted = f"serial {serial!r}" if serial is not None else " or ".join(map(repr, match))
        raise DeviceError(f"adb: no device with {wanted} is attached; attached: {_names(attached)}")
    if len(suited) > 1:
        raise DeviceError(f"adb: {len(suited)} devices are attached; choose with --serial: {_names(suited)}")
    _check_ready(suited[0])
    return suited[0]


def _check_ready(one: Attached) -> None:
    if one.state == READY:
        return
    advice = next(
        (text for state, text in ADVICE.items() if one.state.startswith(state)), "start Android on it"
    )
    raise DeviceError(f"{one.serial}: is {one.state}; {advice}")


def _names(devices: Sequence[Attached]) -> str:
    return ", ".join(map(str, devices))


def _attached(line: str) -> Attached:
    """Reads `SERIAL  STATE key:value ...`; the state `no permissions (...)` has spaces."""
    serial, _, rest = line.partition("\t") if "\t" in line else line.partition(" ")
    fields = dict(re.findall(r"\b(product|model|device):(\S+)", rest))
    state = (
        "no permissions" if rest.strip().startswith("no permissions") else (rest.split() or ["offline"])[0]
    )
    return Attached(serial, state, fields.get("model"), fields.get("device"))


def _call_adb(
    adb: str, words: Sequence[str], *, timeout_s: float, where: str
) -> subprocess.CompletedProcess[str]:
    what = next((word for word in words if word in ("devices", "shell", "push")), words[0])
    try:
        return subprocess.run(
            [adb, *words],
            stdin=subprocess.DEVNULL,  # an old device's shell would wait for the end of it
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise DeviceError(
            f"{adb}: no such program; install adb (Debian: apt-get install adb) or name it with --adb"
        ) from None
    except PermissionError:
        raise DeviceError(f"{adb}: may not be run; name another with --adb") from None
    except subprocess.TimeoutExpired:
        raise DeviceError(f"{where}: `adb {what}` took over {timeout_s:g} s; is the device awake?") from None


def _said(text: str) -> str:
    """Returns `: ` and the last error adb printed, or its last line, or nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line] or lines
    return f": {telling[-1].removeprefix('adb: ').removeprefix('error: ')[:200]}" if lines else ""
