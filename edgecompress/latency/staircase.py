"""Times of blocks that differ in one width, for every width, from a few that were measured.

Kernels work on tiles of 8 channels, or 16, or 32. Widths of whole tiles are fast; others pay for a last tile
that is partly empty, and for odd ends; and below 8 channels other kernels do the work. Eight channels are
often faster than seven. So widths are of three kinds, each with stairs of its own: a straight line and steps,
none of which falls, plus what these leave over, interpolated and made monotone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, nnls

from edgecompress.core.types import Op

Array = NDArray[np.float64]

TILE = 8
"""Channels of the smallest tile."""
STEPS = ((1, 2, 4), (1, 16, 32), (1, 8, 16, 32))
"""Of narrow, whole and other widths: how many channels a step may have; 1 is the straight line."""

CLOSE = 0.005
"""What steps may leave over, as a share, before more kinds of steps are tried."""


def tile_unit(ops: Sequence[Op]) -> int:
    """Returns how many tiles of channels a chain has side by side at its width: one per group."""
    return 1 if any(op.kind == "attention" for op in ops) else ops[-2].groups


def kind_of(width: int, unit: int) -> int:
    """Returns 1 for widths of whole tiles, 0 for others below one tile, 2 for others beyond."""
    if width % (TILE * unit) == 0:
        return 1
    return 0 if width < TILE * unit else 2


def by_kind(widths: Sequence[int], unit: int) -> list[list[int]]:
    """Returns widths of each kind there is, ascending."""
    found = [[width for width in widths if kind_of(width, unit) == kind] for kind in range(len(STEPS))]
    return [part for part in found if part]


@dataclass(frozen=True)
class Stairs:
    """Times of widths of one kind."""

    widths: Array
    """That were measured, ascending."""
    weights: Array
    """Of a constant and of each step."""
    rest: Array
    """What the steps leave over at each width."""
    steps: tuple[int, ...]
    unit: int

    def at(self, width: float) -> float:
        """Returns the time of a width; before the first and beyond the last the steps go on."""
        steps = _columns(np.array([width / self.unit]), self.steps) @ self.weights
        return float(steps[0] + np.interp(width, self.widths, self.rest))


@dataclass(frozen=True)
class Curve:
    """Times of every width from the narrowest that was measured on."""

    narrowest: int
    unit: int
    stairs: Mapping[int, Stairs]
    """By kind of width."""

    def at(self, width: int) -> float | None:
        """Returns the time of one width; None where nothing is known of its kind, or below the narrowest.

        One width alone is all of a curve that is slower than its layer from the start; no other is faster.
        """
        if width < self.narrowest:
            return None
        if len(self.stairs) == 1 and len(next(iter(self.stairs.values())).widths) == 1:
            return next(iter(self.stairs.values())).at(width)
        stairs = self.stairs.get(kind_of(width, self.unit))
        return None if stairs is None else stairs.at(width)


def fit_curve(measured_ms: Mapping[int, float], *, unit: int = 1) -> Curve:
    """Returns the curve through measured widths; `unit` as of `tile_unit`."""
    parts = by_kind(sorted(measured_ms), unit)
    stairs = {
        kind_of(part[0], unit): fit_stairs({width: measured_ms[width] for width in part}, unit)
        for part in parts
    }
    return Curve(min(measured_ms), unit, stairs)


def fit_stairs(measured_ms: Mapping[int, float], unit: int) -> Stairs:
    """Returns stairs through widths of one kind, by relative error; wider ones are never faster."""
    widths = np.array(sorted(measured_ms), dtype=np.float64)
    raw = np.array([measured_ms[int(width)] for width in widths])
    ms = np.exp(isotonic_regression(np.log(raw)).x)
    every = STEPS[kind_of(int(widths[0]), unit)]
    fits = [_weighed(widths, ms, every[:count], unit) for count in range(min(len(ms), len(every) + 1))]
    worst = [float(np.abs(one.rest / ms).max()) for one in fits]
    good = max(CLOSE, min(worst[:2]) / 2)  # as few steps as will do: many fit any few points
    return next((one for one, left in zip(fits, worst, strict=True) if left <= good), fits[:2][-1])


def _weighed(widths: Array, ms: Array, steps: tuple[int, ...], unit: int) -> Stairs:
    columns = _columns(widths / unit, steps)
    weights, _ = nnls(columns / ms[:, None], np.ones(len(ms)))
    return Stairs(widths, weights, ms - columns @ weights, steps, unit)


def left_out_error(measured_ms: Mapping[int, float], width: int, *, unit: int) -> float:
    """Returns how far a measured width lies from what others of its kind say of it, as a share."""
    others = {each: ms for each, ms in measured_ms.items() if each != width}
    return abs(fit_stairs(others, unit).at(width) / measured_ms[width] - 1)


def _columns(channels: Array, steps: Sequence[int]) -> Array:
    """Returns a column of ones, and one per step with the channels that are really computed."""
    return np.stack([np.ones_like(channels), *(np.ceil(channels / step) * step for step in steps)], axis=1)
