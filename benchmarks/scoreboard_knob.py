"""Turns the knob of a method until its network takes so much time and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

NEAR = 0.03
"""Share of the point by which a network may be too fast."""
LEAST, MOST = 0.02, 1.0
"""Ends of every knob: what is left of the dense network, by whatever the method counts."""
CLOSEST = 1e-3
"""Two positions nearer than this make the same network."""
DENSE = (1.0, 1.0)
"""Position and share where nothing is taken away."""


@dataclass(frozen=True)
class Trial:
    """A position of the knob and what became of it."""

    knob: float
    share: float | None
    """Of the dense network's time; None where the method cannot go that far."""


Measure = Callable[[float], float | None]
"""Gets a position; returns the share of the dense network's time as `Trial` has it."""


def turn(
    measure: Measure,
    point: float,
    known: Sequence[Trial] = (),
    *,
    start: float | None = None,
    tries: int = 6,
) -> list[Trial]:
    """Returns `known` and further trials, until one is just below `point`, or after so many tries.

    `start` is the first position where nothing is known that is better; the point itself when None.

    The time should grow with the knob, but need not all the way: it climbs in stairs. The next position lies
    on a straight line through the nearest trials; every third one is in the middle of what is left.
    """
    found = list(known)
    for number in range(tries):
        best = fitting(found, point)
        if best is not None and best.share is not None and best.share >= (1 - NEAR) * point:
            break
        knob = start if number == 0 and start is not None else _next(found, point, straight=number % 3 < 2)
        if any(abs(knob - one.knob) < CLOSEST for one in found):
            knob = _next(found, point, straight=False)
        if any(abs(knob - one.knob) < CLOSEST for one in found):
            break
        found.append(Trial(knob, measure(knob)))
    return found


def fitting(trials: Sequence[Trial], point: float) -> Trial | None:
    """Returns the slowest network that takes no more than `point`."""
    within = [one for one in trials if one.share is not None and one.share <= point]
    return max(within, key=lambda one: (one.share or 0.0, one.knob), default=None)


def foretold(predicted: Callable[[float], float | None], point: float, *, steps: int = 9) -> float:
    """Returns the highest position whose predicted share is just below `point`, by halving."""
    low, high, aim = LEAST, MOST, (1 - NEAR / 2) * point
    for _ in range(steps):
        middle = (low + high) / 2
        share = predicted(middle)
        low, high = (middle, high) if share is None or share <= aim else (low, middle)
    return low


def _next(found: Sequence[Trial], point: float, *, straight: bool) -> float:
    """Returns a position between the nearest that are known to be too slow and to be fast enough."""
    measured = [(one.knob, one.share) for one in found if one.share is not None]
    if not measured and not found:
        return point
    low = max((knob for knob, share in measured if share <= point), default=None)
    if low is None:
        low = max((one.knob for one in found if one.share is None), default=LEAST)
    high = min((knob for knob, share in [*measured, DENSE] if share > point and knob > low), default=MOST)
    if not straight or not measured:
        return (low + high) / 2
    margin = 0.05 * (high - low)
    return min(max(_on_line(measured, (1 - NEAR / 2) * point), low + margin), high - margin)


def _on_line(measured: Sequence[tuple[float, float]], aim: float) -> float:
    """Returns where the line through the two trials nearest to the aim, dense being one, meets it."""
    nearest = sorted({*measured, DENSE}, key=lambda one: abs(one[1] - aim))
    (knob, share), *others = nearest
    other = next((one for one in others if one[1] != share and one[0] != knob), None)
    if other is None:
        return knob * aim / share
    return knob + (aim - share) * (other[0] - knob) / (other[1] - share)
