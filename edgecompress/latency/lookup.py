"""Milliseconds of any block of a search space, from the blocks that were measured.

Along a curve, pairs of layers that differ only in the width between them, times are made monotone (a wider
pair is never faster; isotonic regression) and interpolated linearly. Two branches take the sum of both and of
adding their outputs. What no measurement covers is an error that names the command to add it, never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from edgecompress.core.latency_table import LatencyTable
from edgecompress.core.types import Block, Op, Size
from edgecompress.errors import ConfigError
from edgecompress.latency.keys import block_key, curve_key

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Times of one curve: widths ascending, milliseconds not descending."""

    widths: Array
    ms: Array

    def at(self, width: int) -> float | None:
        """Returns the time of one width; None outside of what was measured."""
        if not self.widths[0] <= width <= self.widths[-1]:
            return None
        return float(np.interp(width, self.widths, self.ms))


@dataclass(frozen=True)
class Lookup:
    """A table ready to be asked."""

    name: str
    exact: Mapping[str, float]
    curves: Mapping[str, Curve]

    def ms(self, block: Block, in_size: Size) -> float:
        """Returns the milliseconds of a block by itself.

        Raises:
            ConfigError: the table does not cover it.
        """
        if len(block.branches) == 1:
            return self._chain_ms(block.branches[0], in_size)
        measured = self.exact.get(block_key(block, in_size))
        if measured is not None:
            return measured
        return sum(self._chain_ms(ops, in_size) for ops in block.branches)

    def _chain_ms(self, ops: tuple[Op, ...], in_size: Size) -> float:
        curve = self.curves.get(curve_key(ops, in_size) or "")
        found = None if curve is None else curve.at(ops[0].outputs)
        key = block_key(Block(branches=(ops,)), in_size)
        found = self.exact.get(key) if found is None else found
        if found is None:
            raise ConfigError(
                f"latency table {self.name!r}: has no entry for {key!r}; add it with "
                "`edgecompress latency build --device NAME --model MODEL -o TABLE`"
            )
        return found


def make_lookup(table: LatencyTable) -> Lookup:
    """Returns a table ready to be asked."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    exact = {}
    for entry in table.entries:
        exact[block_key(entry.block, entry.in_size)] = entry.median_ms
        branches = entry.block.branches
        curve = curve_key(branches[0], entry.in_size) if len(branches) == 1 else None
        if curve is not None:
            points[curve].append((branches[0][0].outputs, entry.median_ms))
    return Lookup(table.name, exact, {key: fit_curve(values) for key, values in points.items()})


def fit_curve(points: list[tuple[int, float]]) -> Curve:
    """Returns the nearest curve that never falls, by relative error."""
    widths, ms = (np.array(column, dtype=np.float64) for column in zip(*sorted(points), strict=True))
    fitted = np.exp(isotonic_regression(np.log(ms)).x)
    return Curve(widths, fitted)
