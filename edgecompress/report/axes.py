"""Axes: from values to pixels, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edgecompress.report.drawing import Line, Shape, Words
from edgecompress.report.numbers import count


@dataclass(frozen=True)
class Scale:
    """Maps values between `low` and `high` to pixels between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns the pixel of a value; those beyond the ends lie on them."""
        held = min(max(value, self.low), self.high)
        return self.start + (held - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Returns about so many round values within the ends."""
        step = _round_step((self.high - self.low) / max(about, 1))
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 2.5, 5, 10) if times * power >= rough * 0.999)


def spanning(values: Iterable[float], start: float, end: float, *, margin: float = 0.06) -> Scale:
    """Returns a scale over values with some room at both ends."""
    found = list(values)
    low, high = min(found), max(found)
    room = (high - low) * margin or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, start, end)


def tick_text(value: float) -> str:
    """Returns a tick without needless digits."""
    return f"-{tick_text(-value)}" if value < 0 else count(0.0 if value < 1e-12 else value)


def _named(ticks: list[float]) -> list[tuple[float, str]]:
    """Returns ticks with their texts; those of one unit have equally many decimals."""
    texts = [tick_text(value) for value in ticks]
    decimals = max((len(one.partition(".")[2]) for one in texts if " " not in one), default=0)
    plain = [f"{value:.{decimals}f}" for value in ticks]
    return list(zip(ticks, texts if any(" " in one for one in texts) else plain, strict=True))


def frame(x: Scale, y: Scale, x_name: str, y_name: str, *, whole: bool = False) -> list[Shape]:
    """Returns grid lines, ticks and the names of both axes; `y` grows upwards, `x` may be `whole` numbers."""
    left, right, bottom, top = x.start, x.end, y.start, y.end
    shapes: list[Shape] = []
    for value, words in _named(y.ticks()):
        shapes.append(Line([(left, y(value)), (right, y(value))], "faint"))
        shapes.append(Words(left - 8, y(value) + 4, words, anchor="end"))
    ticks = x.ticks(max(2, int((right - left) / 80)))
    for value, words in _named([one for one in ticks if not whole or abs(one - round(one)) < 1e-9]):
        shapes.append(Line([(x(value), bottom), (x(value), bottom + 4)], "muted"))
        shapes.append(Words(x(value), bottom + 18, words, anchor="middle"))
    shapes.append(Line([(left, bottom), (right, bottom)], "muted"))
    shapes.append(Words((left + right) / 2, bottom + 37, x_name, anchor="middle"))
    shapes.append(Words(max(left - 44, 2), top - 14, y_name))
    return shapes
