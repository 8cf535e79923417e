"""Which widths of a curve to measure: where the staircase bends, and no others.

A stretch between two measured widths is halved: where the middle lies on the straight line between the ends,
nothing bends there and the stretch is done; otherwise both halves are looked at in turn. Plans take any width
in between from the line, so the tolerance is the error they may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

TOLERANCE = 0.02
"""Largest error of a width that is not measured, as a share; measuring itself is no better."""

_FIRST = 3
"""Widths to begin with: the ends and the middle."""


def next_widths(
    widths: Sequence[int], measured_ms: Mapping[int, float], *, tolerance: float = TOLERANCE
) -> list[int]:
    """Returns the widths to measure next, ascending; none: the curve is known.

    `widths` are all a search may ask for, ascending.
    """
    known = [position for position, width in enumerate(widths) if width in measured_ms]
    first = _first(len(widths))
    if not first <= set(known):
        return [widths[position] for position in sorted(first - set(known))]
    wanted = set()
    for left, right in pairwise(known):
        if right - left > 1 and _bends(widths, measured_ms, known, left, right, tolerance):
            wanted.add((left + right) // 2)
    return [widths[position] for position in sorted(wanted)]


def _first(count: int) -> set[int]:
    if count <= _FIRST:
        return set(range(count))
    return {0, (count - 1) // 2, count - 1}


def _bends(
    widths: Sequence[int],
    ms: Mapping[int, float],
    known: Sequence[int],
    left: int,
    right: int,
    tolerance: float,
) -> bool:
    """Tells whether a stretch may hide a bend: leaving out either of its ends would be noticed.

    What cannot be seen from the neighbours cannot be much: the stretch itself may rise by a small share only.
    """
    if _rise(ms[widths[left]], ms[widths[right]]) <= tolerance:
        return False
    place = known.index(left)
    inner = [place + step for step in (0, 1) if 0 < place + step < len(known) - 1]
    return any(_error(widths, ms, known[at - 1], known[at], known[at + 1]) > tolerance for at in inner)


def _rise(first: float, second: float) -> float:
    return abs(second - first) / min(first, second)


def _error(widths: Sequence[int], ms: Mapping[int, float], left: int, at: int, right: int) -> float:
    """Returns how far a width lies from the line between two others, as a share."""
    low, middle, high = (widths[position] for position in (left, at, right))
    share = (middle - low) / (high - low)
    line = (1 - share) * ms[low] + share * ms[high]
    return abs(line - ms[middle]) / ms[middle]
