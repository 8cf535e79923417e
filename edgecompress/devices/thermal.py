"""How warm an Android phone is, and whether that is too warm to measure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import takewhile

BATTERY = "battery"
HAL_TITLE = "Current temperatures from HAL:"
HAL_TYPES = {"battery": 2, "skin": 3}
HAL_NOT_TEMPERATURES = range(6, 9)
"""Limits of the battery's voltage, current and charge, listed among the temperatures."""
LIMIT_C = 40.0
"""Phones begin to slow down when their skin or battery is a little warmer than this."""
PLAUSIBLE_C = (0.0, 150.0)
"""A sensor outside of this is not fitted or not read."""


@dataclass(frozen=True)
class Thermal:
    """What a phone says of its heat at one moment."""

    status: int | None = None
    """Android's scale: 0 is none, 3 and more is severe throttling."""
    temperatures_c: dict[str, float] = field(default_factory=dict)
    outside_c: dict[str, float] = field(default_factory=dict)
    """Those of skin and battery: the others rise and fall within a second."""


def parse_thermalservice(text: str) -> Thermal:
    """Reads `dumpsys thermalservice`; its block of cached temperatures is out of date and ignored."""
    status = re.search(r"^Thermal Status: (\d{1,9})\b", text, flags=re.MULTILINE)
    _, _, rest = text.partition(HAL_TITLE)
    current = takewhile(lambda line: "Temperature{" in line, rest.strip().splitlines())
    form = r"\{mValue=(-?\d+(?:\.\d+)?), mType=(-?\d{1,9}), mName=([^,}]+)"
    found = re.findall(form, "\n".join(current))
    readings = [(name, int(kind), float(value)) for value, kind, name in found]
    readings = [one for one in readings if one[1] not in HAL_NOT_TEMPERATURES and _plausible(one[2])]
    return Thermal(
        status=None if status is None else int(status[1]),
        temperatures_c={name: value for name, _, value in readings},
        outside_c={name: value for name, kind, value in readings if kind in HAL_TYPES.values()},
    )


def parse_zones(text: str, *, status: int | None = None) -> Thermal:
    """Reads lines `TYPE TEMPERATURE` of the kernel's thermal zones; most, not all, are in thousandths."""
    readings = {
        name: float(value) for name, value in re.findall(r"^(\S+) (-?\d+)\r?$", text, flags=re.MULTILINE)
    }
    scaled = {name: value / 1e3 if abs(value) >= 1e3 else value for name, value in readings.items()}
    temperatures_c = {name: value for name, value in scaled.items() if _plausible(value)}
    outside_c = {
        name: value for name, value in temperatures_c.items() if re.search("skin|batt", name.lower())
    }
    return Thermal(status, temperatures_c, outside_c)


def with_battery(thermal: Thermal, battery_c: float | None) -> Thermal:
    """Adds what `dumpsys battery` says, where no sensor of that name is listed."""
    if battery_c is None or not _plausible(battery_c):
        return thermal
    own = {BATTERY: battery_c}
    return replace(thermal, temperatures_c=own | thermal.temperatures_c, outside_c=own | thermal.outside_c)


def too_warm(thermal: Thermal) -> str | None:
    """Returns why a phone should rest before it is measured, as `at 41.0 °C (skin)`, or None."""
    if thermal.status:
        return f"at thermal status {thermal.status}"
    name = max(thermal.outside_c, key=lambda one: thermal.outside_c[one], default=None)
    if name is None or thermal.outside_c[name] <= LIMIT_C:
        return None
    return f"at {thermal.outside_c[name]:.1f} °C ({name})"


def _plausible(value_c: float) -> bool:
    return PLAUSIBLE_C[0] < value_c < PLAUSIBLE_C[1]
