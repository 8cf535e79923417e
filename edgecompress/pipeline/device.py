"""`edgecompress device`: what a device file says, and the runner a board needs."""

from __future__ import annotations

from pathlib import Path

from edgecompress.core.device import Device
from edgecompress.devices.files import load_device
from edgecompress.devices.native import build
from edgecompress.devices.native.build import DevicePrepared
from edgecompress.errors import ConfigError


def show(name: str) -> Device:
    """Returns what is known of a device, by its name or the path of its file.

    Raises:
        ConfigError: there is no such device, or its file is wrong.
    """
    return load_device(name)


def prepare(
    name: str,
    *,
    litert_wheel: Path | None = None,
    compiler: str | None = None,
    machine: str = build.BOARD_MACHINE,
    directory: Path | None = None,
) -> DevicePrepared:
    """Builds what must be there before a board can be measured, unless it was built before.

    May fetch LiteRT's wheel for the board with pip. Kept in `directory`, by default the user's cache,
    where measuring looks for it.

    Raises:
        ConfigError: there is no such device, it needs no runner, or the wheel does not fit.
        MissingPackage: a compiler or the wheel is missing.
    """
    device = load_device(name)
    if "board" not in device.drivers:
        raise ConfigError(f'device {device.name!r}: needs no runner; only boards do (drivers = ["board"])')
    built = build.prepare(
        directory or build.cache_directory(), machine=machine, compiler=compiler, litert_wheel=litert_wheel
    )
    return DevicePrepared(
        device=device.name,
        machine=built.machine,
        litert_version=built.litert_version,
        runner=str(built.runner),
        library=str(built.library),
    )
