"""Finds the channels of a network that can be taken away, with every place where each of them occurs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from edgecompress.core.types import Group
from edgecompress.nets.channel_flow import follow_channels
from edgecompress.nets.channel_numbers import NEVER
from edgecompress.nets.channel_steps import Channels
from edgecompress.nets.channel_units import Units, groups_of, units_of
from edgecompress.nets.narrowing import entries
from edgecompress.nets.width_trial import tried


@dataclass(frozen=True)
class WidthGroups:
    """What of a network can get narrower, and what cannot."""

    groups: tuple[Group, ...]
    """In forward order of the layers that make them."""
    refused: tuple[tuple[str, str], ...]
    """Layers whose outputs must stay, all or some, each with the reason."""


def find_width_groups(
    model: nn.Module, input_shape: tuple[int, int, int], *, residual: bool = True
) -> WidthGroups:
    """Returns the groups of channels that can be taken away from convolutions and linear layers.

    Removal is exact: where units are zero at all gates of their group, the network without them computes the
    same in eval mode. All groups have been tried on a copy of the network. Without `residual`, groups joined
    by a sum are left out: they are the widths of the stages of residual networks.

    Raises:
        ModelError: the network does not run on such an image, or branches on the values of it.
    """
    network = copy.deepcopy(model).eval()
    found = follow_channels(network, input_shape)
    units = units_of(found)
    fixed = _fixed(found, units, residual=residual)
    groups, failed = tried(network, input_shape, tuple(groups_of(found, units, fixed, network)))
    return WidthGroups(groups, (*found.refused.items(), *_left(found, units, fixed, groups, dict(failed))))


def _fixed(found: Channels, units: Units, *, residual: bool) -> dict[int, str]:
    """Returns the units that must stay, each with the first reason."""
    reasons = list(found.fixed)
    for reader, read in found.reads:
        reasons.append((read.channels[read.zero == NEVER], f"cannot be made zero where {reader} reads it"))
    if not residual:
        reasons += [(channels, "is joined to other layers by a sum") for channels in found.summed]
    fixed: dict[int, str] = {}
    for channels, why in reasons:
        for unit in units.at(channels):
            fixed.setdefault(unit, why)
    return fixed


def _left(
    found: Channels,
    units: Units,
    fixed: Mapping[int, str],
    groups: Sequence[Group],
    failed: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yields the layers with outputs that are in no group."""
    for place in found.places:
        if place.axis != "outputs":
            continue
        free = {int(entry) for group in groups for entry in _entries_at(group, place.module)}
        left = [entry for entry in range(len(place.channels)) if entry not in free]
        if left:
            unit = int(units.of_channel[place.channels[left[0]]])
            why = fixed.get(unit) or failed.get(place.module) or _why_alone(units, unit)
            some = (
                "" if len(left) == len(place.channels) else f"{len(left)} of {len(place.channels)} outputs: "
            )
            yield place.module, some + why


def _entries_at(group: Group, module: str) -> Iterator[int]:
    for cut in group.cuts:
        if cut.module == module and cut.axis == "outputs":
            yield from entries(cut, range(group.width), group.width).tolist()


def _why_alone(units: Units, unit: int) -> str:
    return "lies among others in another order" if units.gates.get(unit) else "is read by no layer"
