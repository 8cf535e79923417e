"""`edgecompress device`: what a device file says, and what boards and emulated cores need."""

from __future__ import annotations

from pathlib import Path

from edgecompress.core.caches import cache_directory
from edgecompress.core.device import Device
from edgecompress.devices.files import load_device
from edgecompress.devices.native import build
from edgecompress.devices.native.build import DevicePrepared
from edgecompress.devices.native.emulation import prepare_emulation
from edgecompress.devices.qemu import check_emulation, find_qemu
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
    """Builds what must be there before a board or an emulated core can be used, unless it was before.

    May fetch LiteRT's wheel for the board with pip. Kept in `directory`, by default the user's cache,
    where measuring looks for it. An emulated core is tried out.

    Raises:
        ConfigError: there is no such device, it needs nothing, or the wheel does not fit.
        MissingPackage: a compiler, the wheel, or for an emulated core qemu or a library is missing.
        DeviceError: the emulated core does not work.
    """
    device, folder = load_device(name), directory or cache_directory()
    if "emulated" in device.drivers:
        if machine != build.BOARD_MACHINE:
            raise ConfigError(
                f"--machine {machine}: {device.name} emulates {build.BOARD_MACHINE}; leave it out"
            )
        return _prepare_emulated(device, folder, litert_wheel=litert_wheel, compiler=compiler)
    if "board" not in device.drivers:
        raise ConfigError(
            f"device {device.name!r}: needs no runner; only boards and emulated cores do "
            '(drivers = ["board"] or ["emulated"])'
        )
    built = build.prepare(folder, machine=machine, compiler=compiler, litert_wheel=litert_wheel)
    return DevicePrepared(
        device=device.name,
        machine=built.machine,
        litert_version=built.litert_version,
        runner=str(built.runner),
        library=str(built.library),
    )


def _prepare_emulated(
    device: Device, folder: Path, *, litert_wheel: Path | None, compiler: str | None
) -> DevicePrepared:
    if device.emulation is None:
        raise ConfigError(f"device {device.name!r}: its file has no [emulation]; see emulated-a76.toml")
    find_qemu()  # before the long part
    prepared = prepare_emulation(folder, device.emulation, compiler=compiler, litert_wheel=litert_wheel)
    check_emulation(prepared)
    return DevicePrepared(
        device=device.name,
        machine=build.BOARD_MACHINE,
        litert_version=prepared.litert_version,
        runner=str(prepared.runner),
        library=str(prepared.runner.with_name(build.LIBRARY)),
        plugin=str(prepared.plugin),
        root=str(prepared.root),
    )
