"""Milliseconds of any block of a search space, from the blocks that were measured.

Blocks that differ only in one width lie on a curve (`staircase.py`). It ends at its widest block, or where it
is no longer faster than the layer it replaces; beyond that it is drawn on. Two branches take the sum of both
and of joining them. What no measurement covers is an error that names the command to add it, never 0.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edgecompress.core.costs import chain_out_size
from edgecompress.core.latency_table import LatencyTable, TableEntry, block_ms
from edgecompress.core.types import Block, Op, Size
from edgecompress.errors import ConfigError
from edgecompress.latency.keys import block_key, curve_key, curve_width, dimension_key, head_dim
from edgecompress.latency.parsing import parse_block
from edgecompress.latency.staircase import Curve, fit_curve, tile_unit
from edgecompress.latency.widths import Widths, widths_of

Chain = tuple[tuple[Op, ...], Size, float]
"""Operators one after the other, the size of their input, and what they take in milliseconds."""
Join = tuple[int, Size]
"""Channels and size of the maps that two branches add."""


@dataclass(frozen=True)
class Lookup:
    """A table ready to be asked."""

    name: str
    exact: Mapping[str, float]
    curves: Mapping[str, Curve]
    dimensions: Mapping[str, Curve]
    """Attention by the width of its heads."""
    widths: Widths
    joins: Mapping[Join, float]
    """What two branches take beyond the sum of both."""

    def ms(self, block: Block, in_size: Size) -> float:
        """Returns the milliseconds of a block by itself.

        Raises:
            ConfigError: the table does not cover it.
        """
        found = self.find(block, in_size)
        if found is None:
            raise ConfigError(
                f"latency table {self.name!r}: has no entry for {block_key(block, in_size)!r}; add it with "
                "`edgecompress latency build --device NAME --model MODEL -o TABLE`"
            )
        return found

    def find(self, block: Block, in_size: Size) -> float | None:
        """Returns the milliseconds of a block by itself; None where the table does not cover it."""
        if len(block.branches) == 1:
            return self._find_chain(block.branches[0], in_size)
        exact = self.exact.get(block_key(block, in_size))
        if exact is not None:
            return exact
        join = self.joins.get(_join(block, in_size))
        chains = [self._find_chain(ops, in_size) for ops in block.branches]
        known = [ms for ms in chains if ms is not None]
        if join is None or len(known) < len(chains):
            return None
        return max(sum(known) + (len(known) - 1) * join, max(known))

    def _find_chain(self, ops: tuple[Op, ...], in_size: Size) -> float | None:
        curve = self.curves.get(curve_key(ops, in_size) or "")
        found = None if curve is None else curve.at(curve_width(ops))
        by_dimension = self.dimensions.get(dimension_key(ops, in_size) or "") if found is None else None
        if by_dimension is not None:
            found = by_dimension.at(head_dim(ops))
        if found is None:
            found = self.exact.get(block_key(Block(branches=(ops,)), in_size))
        return self.widths.ms(ops[0], in_size) if found is None and len(ops) == 1 else found


def make_lookup(table: LatencyTable, *, name: str | None = None) -> Lookup:
    """Returns a table ready to be asked; `name` is what errors call it."""
    return lookup_of(table.entries, table.overhead_ms, name=name or table.device)


def lookup_of(entries: Iterable[TableEntry], overhead_ms: float, *, name: str) -> Lookup:
    """Returns entries ready to be asked, without what each takes beyond its block."""
    measured = [(entry.key, *parse_block(entry.key), block_ms(entry, overhead_ms)) for entry in entries]
    chains = [(one.branches[0], size, ms) for _, one, size, ms in measured if len(one.branches) == 1]
    alone = Lookup(
        name,
        {key: ms for key, _, _, ms in measured},
        _curves(chains),
        _dimensions(chains),
        widths_of((ops[0], size, ms) for ops, size, ms in chains if len(ops) == 1),
        {},
    )
    forks = [(one, size, ms) for _, one, size, ms in measured if len(one.branches) > 1]
    return replace(alone, joins=_joins(forks, alone))


def _curves(chains: Iterable[Chain]) -> dict[str, Curve]:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    units: dict[str, int] = {}
    for ops, in_size, ms in chains:
        key = curve_key(ops, in_size)
        if key is not None:
            points[key][curve_width(ops)] = ms
            units[key] = tile_unit(ops)
    # one attention says nothing of others: it may have been measured for the width of its heads
    return {
        key: fit_curve(found, unit=units[key])
        for key, found in points.items()
        if len(found) > 1 or " attention " not in key
    }


def _dimensions(chains: Iterable[Chain]) -> dict[str, Curve]:
    """Returns curves of attention by the width of its heads, where it was measured at several."""
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for ops, in_size, ms in chains:
        key = dimension_key(ops, in_size)
        if key is not None:
            points[key][head_dim(ops)] = ms
    return {key: fit_curve(found) for key, found in points.items() if len(found) > 2}


def _joins(forked: list[tuple[Block, Size, float]], chains: Lookup) -> dict[Join, float]:
    """Returns the median of what measured forks take beyond their branches."""
    found: dict[Join, list[float]] = defaultdict(list)
    for block, in_size, ms in forked:
        alone = [chains.ms(Block(branches=(ops,)), in_size) for ops in block.branches]
        found[_join(block, in_size)].append((ms - sum(alone)) / (len(alone) - 1))
    return {key: statistics.median(values) for key, values in found.items()}


def _join(block: Block, in_size: Size) -> Join:
    ops = block.branches[0]
    return ops[-1].outputs, chain_out_size(ops, in_size)
