"""Puts channels together that can only go together, and describes where they lie as cuts of a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from edgecompress.core.types import Cut, Group
from edgecompress.nets.channel_steps import Channels, Place
from edgecompress.nets.modules import layer_named
from edgecompress.nets.narrowing import entries


@dataclass(frozen=True)
class Units:
    """Channels that can only go together are one unit."""

    of_channel: NDArray[np.int32]
    entries: Mapping[int, Mapping[int, list[int]]]
    """Where a unit occurs: entries, ascending, by the index of the place."""
    gates: Mapping[int, frozenset[str]]
    """Modules whose outputs must be zero for all that is read of a unit to be zero; none: never read."""

    def at(self, channels: Tensor) -> list[int]:
        """Returns the units of channels, each once and in order."""
        return list(dict.fromkeys(self.of_channel[channels.numpy()].tolist()))


def units_of(found: Channels) -> Units:
    """Returns the units of all channels of a network."""
    of_channel = _joined(found)
    where: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, place in enumerate(found.places):
        for entry, unit in enumerate(of_channel[place.channels.numpy()].tolist()):
            where[unit][index].append(entry)
    gates: dict[int, frozenset[str]] = defaultdict(frozenset)
    for _, read in found.reads:
        pairs = {*zip(of_channel[read.channels.numpy()].tolist(), read.zero.tolist(), strict=True)}
        for unit, condition in pairs:
            gates[unit] |= found.conditions[condition]
    return Units(of_channel, where, gates)


def _joined(found: Channels) -> NDArray[np.int32]:
    pairs = [torch.stack(pair) for pair in found.same]
    first, second = torch.cat([torch.zeros(2, 0, dtype=torch.long), *pairs], 1).numpy()
    graph = coo_array((np.ones(len(first), bool), (first, second)), shape=(found.count, found.count))
    labels: NDArray[np.int32] = connected_components(graph, directed=False)[1]
    return labels


def groups_of(found: Channels, units: Units, fixed: Collection[int], model: nn.Module) -> Iterator[Group]:
    """Yields units that lie one after the other wherever they occur, as one group each.

    Left out are fixed units, units nobody reads and units without a neighbour: of one, none can go.
    """
    seen, taken = set(fixed), set[str]()
    for place in found.places:
        if place.axis == "outputs":
            free = [unit for unit in units.at(place.channels) if unit not in seen and units.gates.get(unit)]
            seen.update(free)
            for members in _runs(free, units):
                group = _group(_name(place, members, units, taken), members, found.places, units, model)
                if group is not None:
                    taken.add(group.name)
                    yield group


def _name(place: Place, members: Sequence[int], units: Units, taken: Collection[str]) -> str:
    """Returns the name of the maker, with a range where another group has it already."""
    if place.module not in taken:
        return place.module
    first = int(np.flatnonzero(units.of_channel[place.channels.numpy()] == members[0])[0])
    return f"{place.module}[{first}:{first + len(members)}]"


def _runs(order: Sequence[int], units: Units) -> Iterator[list[int]]:
    run: list[int] = []
    for unit in order:
        if run and not _follows(units, run[-1], unit):
            yield run
            run = []
        run.append(unit)
    if run:
        yield run


def _follows(units: Units, before: int, after: int) -> bool:
    here, there = units.entries[before], units.entries[after]
    if here.keys() != there.keys() or units.gates[before] != units.gates[after]:
        return False
    return all(_next_to(here[place], there[place]) for place in here)


def _next_to(here: Sequence[int], there: Sequence[int]) -> bool:
    run = _run(here)
    return len(here) == len(there) and all(b - a == run for a, b in zip(here, there, strict=True))


def _run(positions: Sequence[int]) -> int:
    """Returns how many of the first entries lie side by side."""
    return next((i for i, entry in enumerate(positions) if entry != positions[0] + i), len(positions))


def _group(
    name: str, members: Sequence[int], places: Sequence[Place], units: Units, model: nn.Module
) -> Group | None:
    """Returns the members as a group; None: there is one only, or no cut describes where they lie."""
    lists = [
        (places[index], [units.entries[unit][index] for unit in members])
        for index in units.entries[members[0]]
    ]
    cuts = [_cut(place, positions) for place, positions in lists]
    if len(members) < 2 or None in cuts:
        return None
    sure = [cut for cut in cuts if cut is not None]
    gates = units.gates[members[0]]
    makers = [layer_named(model, cut.module) for cut in sure if cut.axis == "outputs"]
    return Group(
        name=name,
        kind="hidden" if all(isinstance(maker, nn.Linear) for maker in makers) else "channels",
        width=len(members),
        cuts=tuple(sure),
        gates=tuple(cut for cut in sure if cut.module in gates and cut.axis != "inputs"),
    )


def _cut(place: Place, positions: list[list[int]]) -> Cut | None:
    width, run = len(positions), _run(positions[0])
    repeats = len(positions[0]) // run
    cut = Cut(module=place.module, axis=place.axis, repeats=repeats, run=run, offset=positions[0][0])
    described = entries(cut, range(width), width).reshape(repeats, width, run).transpose(0, 1).flatten(1)
    return cut if described.tolist() == positions else None
