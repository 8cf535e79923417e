"""What an Android phone says of itself: its name and build, its cores, how warm it is.

Everything is read without root, and anything may be missing: files differ between kernels, and
vendors close some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgecompress.core.device import Device
from edgecompress.core.measurement import Environment
from edgecompress.devices.thermal import Thermal, parse_thermalservice, parse_zones, with_battery
from edgecompress.devices.transport import Transport
from edgecompress.errors import DeviceError

TIMEOUT_S = 20.0
"""Of one question; all of them are answered at once by a phone that is awake."""
CPU = "/sys/devices/system/cpu"
CORE_FILES = (
    f"{CPU}/cpu[0-9]*/cpu_capacity {CPU}/cpu[0-9]*/cpufreq/cpuinfo_max_freq {CPU}/online /proc/cpuinfo"
)
EMULATOR = (
    ("ro.kernel.qemu", "1"),
    ("ro.boot.qemu", "1"),
    ("ro.hardware", "goldfish"),
    ("ro.hardware", "ranchu"),
)
"""Properties of Android's emulator, old and new."""
ZONES = 'for z in /sys/class/thermal/thermal_zone*; do echo "$(cat "$z/type") $(cat "$z/temp")"; done'

ARM, QUALCOMM = 0x41, 0x51
PARTS = {
    # slow to fast, as far as that can be said of a core without its clock
    (ARM, 0xD03): "Cortex-A53",
    (QUALCOMM, 0x801): "Kryo 2xx Silver",
    (ARM, 0xD05): "Cortex-A55",
    (QUALCOMM, 0x803): "Kryo 3xx Silver",
    (QUALCOMM, 0x805): "Kryo 4xx Silver",
    (ARM, 0xD46): "Cortex-A510",
    (ARM, 0xD80): "Cortex-A520",
    (ARM, 0xD07): "Cortex-A57",
    (ARM, 0xD08): "Cortex-A72",
    (ARM, 0xD09): "Cortex-A73",
    (QUALCOMM, 0x800): "Kryo 2xx Gold",
    (ARM, 0xD0A): "Cortex-A75",
    (QUALCOMM, 0x802): "Kryo 3xx Gold",
    (ARM, 0xD0B): "Cortex-A76",
    (QUALCOMM, 0x804): "Kryo 4xx Gold",
    (ARM, 0xD0D): "Cortex-A77",
    (ARM, 0xD41): "Cortex-A78",
    (ARM, 0xD47): "Cortex-A710",
    (ARM, 0xD4D): "Cortex-A715",
    (ARM, 0xD81): "Cortex-A720",
    (ARM, 0xD44): "Cortex-X1",
    (ARM, 0xD48): "Cortex-X2",
    (ARM, 0xD4E): "Cortex-X3",
    (ARM, 0xD82): "Cortex-X4",
}
"""`CPU implementer` and `CPU part` of /proc/cpuinfo."""


@dataclass(frozen=True)
class Core:
    """One core that is switched on; None where the phone does not tell."""

    number: int
    capacity: int | None = None
    """The kernel's own figure for its speed, 1024 for the fastest."""
    max_khz: int | None = None
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class Phone:
    """What does not change while a phone is attached."""

    title: str
    """As `Pixel 4 (flame)`."""
    codename: str
    build: str
    """Fingerprint of the installed system."""
    soc: str | None
    cores: tuple[Core, ...]
    emulated: bool = False
    """Whether it is Android's emulator, whose times say nothing of a phone."""


def read_phone(transport: Transport) -> Phone:
    """Asks a phone for what does not change.

    Raises:
        DeviceError: it does not answer.
    """
    told = _ask(transport, "getprop")
    properties = dict(re.findall(r"^\[(.+?)\]: \[(.*)\]$", told, flags=re.MULTILINE))
    codename = properties.get("ro.product.device") or "unknown"
    soc_names = ("ro.soc.model", "ro.hardware.chipname", "ro.board.platform")
    return Phone(
        title=f"{properties.get('ro.product.model') or 'Android device'} ({codename})",
        codename=codename,
        build=properties.get("ro.build.fingerprint") or "unknown",
        soc=next((properties[name] for name in soc_names if properties.get(name)), None),
        emulated=any(properties.get(name) == value for name, value in EMULATOR),
        cores=parse_cores(_ask(transport, "sh", "-c", f"grep -Hs . {CORE_FILES}")),
    )


def parse_cores(text: str) -> tuple[Core, ...]:
    """Reads the output of `grep -H` over CORE_FILES; cores that are switched off are left out."""
    capacities = _per_core(text, r"/cpu(\d{1,4})/cpu_capacity:(\d{1,9})\b")
    clocks = _per_core(text, r"/cpu(\d{1,4})/cpufreq/cpuinfo_max_freq:(\d{1,9})\b")
    parts = _parts(text)
    online = _online(text)
    numbers = sorted(capacities.keys() | clocks.keys() | parts.keys() | set(online or ()))
    return tuple(
        Core(number, capacities.get(number), clocks.get(number), parts.get(number))
        for number in numbers
        if online is None or number in online
    )


def pick_cores(phone: Phone, device: Device, *, asked: Sequence[int] | None, threads: int) -> tuple[int, ...]:
    """Returns the cores to measure on; empty: let the phone decide.

    That is what was asked for, else the cluster the device file names, else the phone's `threads`
    fastest, else, where it does not tell them apart, the fastest of the file. The file of another
    phone counts for nothing.

    Raises:
        DeviceError: the phone has no such core.
    """
    known = [core.number for core in phone.cores]
    chosen: Sequence[int]
    if asked is not None:
        chosen = asked
    elif device.cluster is not None and is_described(phone, device):
        chosen = device.cores
    else:
        chosen = fastest(phone.cores, threads) or (device.cores if is_described(phone, device) else ())
    if known and not set(chosen) <= set(known):
        raise DeviceError(f"{phone.title}: has no cores {sorted(set(chosen) - set(known))}; it has: {known}")
    return tuple(sorted(set(chosen)))


def is_described(phone: Phone, device: Device) -> bool:
    """Returns whether a device file is about such a phone; one that names no phones is about any."""
    return not device.match or phone.codename in device.match


def fastest(cores: Sequence[Core], count: int) -> tuple[int, ...]:
    """Returns the numbers of the fastest cores; empty where nothing tells them apart or none is known.

    The kernel's capacity counts most, since it knows the kind of core and its clock. Among equals the
    last is taken: the first one handles most interrupts.
    """
    measures: tuple[Callable[[Core], int | None], ...] = (
        lambda core: core.capacity,
        lambda core: core.max_khz,
        lambda core: list(PARTS).index(core.part) if core.part in PARTS else None,
    )
    for measure in measures:
        speeds = {core.number: measure(core) for core in cores}
        if speeds and None not in speeds.values():
            order = sorted(speeds, key=lambda number: (speeds[number], number), reverse=True)
            return tuple(sorted(order[:count]))
    return ()


def taskset_mask(cores: Sequence[int]) -> str:
    """Returns the mask toybox's `taskset` takes: hexadecimal without `0x`."""
    return f"{sum(1 << core for core in set(cores)):x}"


def read_governor(transport: Transport, core: int) -> str | None:
    """Returns what decides on the clock of a core, as `schedutil`; None where the phone does not tell."""
    return _read(transport, f"{CPU}/cpu{core}/cpufreq/scaling_governor")


def read_thermal(transport: Transport) -> Thermal:
    """Asks how warm the phone is: Android's thermal service, else the kernel's sensors, and the battery.

    Raises:
        DeviceError: it does not answer.
    """
    return _thermal(transport, _ask(transport, "dumpsys", "battery"))


def read_environment(transport: Transport, core: int) -> Environment:
    """Returns the state of the phone now; `core` is the one whose clock is told.

    Raises:
        DeviceError: it does not answer.
    """
    battery = _ask(transport, "dumpsys", "battery")
    thermal = _thermal(transport, battery)
    level, scale = _field(battery, "level"), _field(battery, "scale")
    clock_khz = _read(transport, f"{CPU}/cpu{core}/cpufreq/scaling_cur_freq")
    return Environment(
        temperatures_c=thermal.temperatures_c,
        thermal_status=thermal.status,
        clock_mhz=int(clock_khz) / 1e3 if clock_khz and re.fullmatch(r"\d{1,9}", clock_khz) else None,
        charging=_powered(battery),
        battery_percent=None if level is None else round(100 * level / (scale or 100)),
        load=_load(_read(transport, "/proc/loadavg")),
    )


def _thermal(transport: Transport, battery: str) -> Thermal:
    thermal = parse_thermalservice(_ask(transport, "dumpsys", "thermalservice"))
    if not thermal.temperatures_c:
        thermal = parse_zones(_ask(transport, "sh", "-c", ZONES), status=thermal.status)
    tenths_c = _field(battery, "temperature")
    return with_battery(thermal, None if tenths_c is None else tenths_c / 10)


def _ask(transport: Transport, *command: str) -> str:
    """Returns what a command printed, also where it failed: then nothing is found in it."""
    return transport.run(command, timeout_s=TIMEOUT_S).out


def _per_core(text: str, pattern: str) -> dict[int, int]:
    return {int(core): int(value) for core, value in re.findall(pattern, text)}


def _parts(text: str) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    core, implementer = None, 0
    for name, value in re.findall(r"cpuinfo:([\w ]+?)\s*: ((?:0x)?[0-9a-fA-F]{1,8})\b", text):
        if name == "processor" and value.isdecimal():
            core = int(value)
        elif name == "CPU implementer":
            implementer = int(value, 16)
        elif name == "CPU part" and core is not None:
            found[core] = (implementer, int(value, 16))
    return found


def _online(text: str) -> set[int] | None:
    """Reads `0-3,6`; None where the phone does not tell."""
    match = re.search(r"/online:([\d,-]+)", text)
    if match is None:
        return None
    spans = re.findall(r"\b(\d{1,4})(?:-(\d{1,4}))?\b", match[1])
    return {number for first, last in spans for number in range(int(first), int(last or first) + 1)}


def _read(transport: Transport, path: str) -> str | None:
    done = transport.run(["cat", path], timeout_s=TIMEOUT_S)
    return done.out.strip() or None if done.code == 0 else None


def _field(text: str, name: str) -> int | None:
    match = re.search(rf"^\s*{name}: (-?\d{{1,9}})\s*$", text, flags=re.MULTILINE)
    return None if match is None else int(match[1])


def _powered(battery: str) -> bool | None:
    powered = re.findall(r"^\s*\w+ powered: (true|false)\s*$", battery, flags=re.MULTILINE)
    return "true" in powered if powered else None


def _load(text: str | None) -> float | None:
    match = re.match(r"\d{1,9}(\.\d+)?(?!\d)", text or "")
    return None if match is None else float(match[0])
