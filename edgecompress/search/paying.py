"""Fewer multiplications are not always less time: what the device does not make faster is left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from edgecompress.core.costs import op_macs
from edgecompress.core.search_results import Slower
from edgecompress.core.types import Candidate
from edgecompress.search.contract import Costs, Options

LEAST_GAIN = 0.02
"""What a block must save of its layer's cost; less is within what tables are off by."""


def drop_slower(options: Iterable[Options], costs: Costs) -> tuple[tuple[Options, ...], tuple[Slower, ...]]:
    """Returns the options without candidates that do not pay, and which of these have fewer MACs.

    A layer none of whose candidates pays stays dense.
    """
    kept: list[Options] = []
    slower: list[Slower] = []
    for one in options:
        dense = costs.layer(one.layer)
        costed = [(candidate, costs.candidate(candidate)) for candidate in one.candidates]
        paying = tuple(candidate for candidate, cost in costed if cost < (1 - LEAST_GAIN) * dense)
        if paying:
            kept.append(Options(one.layer, paying))
        slower += _slower(one, [pair for pair in costed if pair[1] >= (1 - LEAST_GAIN) * dense], dense)
    return tuple(kept), tuple(slower)


def _slower(one: Options, costed: list[tuple[Candidate, float]], dense: float) -> Iterable[Slower]:
    """Yields one line per family: of its blocks with fewer MACs and more time the one with fewest MACs."""
    macs = op_macs(one.layer.op, one.layer.in_size)
    costed = [pair for pair in costed if pair[0].macs < macs]
    for family, group in itertools.groupby(costed, key=lambda pair: pair[0].family):
        blocks = list(group)
        candidate, cost = min(blocks, key=lambda pair: pair[0].macs)
        yield Slower(
            layer=one.layer.name,
            family=family,
            blocks=len(blocks),
            ranks=candidate.ranks,
            macs_share=candidate.macs / macs,
            cost_share=cost / dense,
        )
