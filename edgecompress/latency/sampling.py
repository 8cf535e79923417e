"""Which widths of a curve to measure: where it bends unforeseen, and no others.

A curve begins at its narrowest width. Where even that is no faster than the layer it replaces, nobody will
ask for more. Then widths of each kind (`staircase.py`) are measured at both ends and in between. Each width
that was measured is also foretold from the others: where that fails, the stretches beside it are halved;
where it holds, nothing hides there. Widths at which the curve has become slower than the layer are left
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from edgecompress.latency.staircase import TILE, by_kind, left_out_error

TOLERANCE = 0.02
"""Largest error of a width that is not measured, as a share; measuring itself is no better."""


def next_widths(
    widths: Sequence[int],
    measured_ms: Mapping[int, float],
    *,
    unit: int = 1,
    limit_ms: float = math.inf,
    tolerance: float = TOLERANCE,
) -> list[int]:
    """Returns the widths to measure next, ascending; none: the curve is known.

    `widths` are all a search may ask for, ascending, of a chain with this `tile_unit`; `limit_ms` is the time
    of the layer they replace.
    """
    if widths[0] not in measured_ms:
        return [widths[0]]
    if measured_ms[widths[0]] >= limit_ms:
        return []
    found = [_next_of_kind(part, measured_ms, unit, limit_ms, tolerance) for part in by_kind(widths, unit)]
    return sorted(width for part in found for width in part)


def _next_of_kind(
    widths: Sequence[int], ms: Mapping[int, float], unit: int, limit_ms: float, tolerance: float
) -> list[int]:
    known = _useful(widths, ms, limit_ms)
    if not known:
        return [widths[0]]
    if ms[widths[known[-1]]] < limit_ms and known[-1] < len(widths) - 1:
        return [widths[_second(widths, unit) if len(known) == 1 else -1]]
    errors = _errors([widths[at] for at in known], ms, unit)
    wanted = set()
    for place, (left, right) in enumerate(pairwise(known)):
        rise = ms[widths[right]] / ms[widths[left]] - 1
        if right - left > 1 and abs(rise) > tolerance and max(errors[place : place + 2]) > tolerance:
            wanted.add(_middle(widths, left, right, unit, above=len(known) % 2 == 0))
    return [widths[position] for position in sorted(wanted)]


def _second(widths: Sequence[int], unit: int) -> int:
    """Returns the position to measure after the first: before the first step ends, or else the middle.

    The first and the middle of many steps would look like a straight line.
    """
    step = -(-widths[0] // (TILE * unit)) * TILE * unit
    on_it = [at for at, width in enumerate(widths) if at > 0 and width < step]
    return on_it[-1] if on_it else max(1, (len(widths) - 1) // 2)


def _useful(widths: Sequence[int], ms: Mapping[int, float], limit_ms: float) -> list[int]:
    """Returns the measured positions up to the first that is no faster than the limit."""
    found = []
    for at, width in enumerate(widths):
        if width in ms:
            found.append(at)
            if ms[width] >= limit_ms:
                break
    return found


def _errors(known: Sequence[int], ms: Mapping[int, float], unit: int) -> list[float]:
    """Returns how badly the others foretell each width; the ends count as the width beside them."""
    if len(known) < 3:
        return [math.inf] * len(known)
    used = {width: ms[width] for width in known}
    inner = [left_out_error(used, width, unit=unit) for width in known[1:-1]]
    return [inner[0], *inner, inner[-1]]


def _middle(widths: Sequence[int], left: int, right: int, unit: int, *, above: bool) -> int:
    """Returns a position about halfway, right after a step of the stairs or, unless `above`, right before.

    Widths at the same place of their steps look like a straight line.
    """
    middle = (left + right) // 2
    if right - left <= TILE:
        return middle if middle > left else right
    aim = (round(widths[middle] / unit / TILE) * TILE + (1 if above else -1)) * unit
    near = range(max(left + 1, middle - TILE // 2), min(right, middle + TILE // 2 + 1))
    return min(near, key=lambda at: abs(widths[at] - aim))
