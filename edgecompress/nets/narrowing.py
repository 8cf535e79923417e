"""Takes channels and dimensions out of a network for good: weights, statistics and attributes get smaller."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from edgecompress.core.types import Axis, Cut, Group, Narrowing
from edgecompress.errors import ModelError
from edgecompress.nets.modules import layer_named

Kept = Mapping[str, Sequence[int]]
"""Units that stay, ascending, by the name of their group; a group that is not there stays whole."""


def narrowing_of(group: Group, kept: int) -> Narrowing:
    """Returns the record of a group of which so many units stay."""
    return Narrowing(group=group.name, kind=group.kind, before=group.width, after=kept, cuts=group.cuts)


def narrow_(model: nn.Module, groups: Iterable[Group], kept: Kept) -> tuple[Narrowing, ...]:
    """Takes all units away that are not kept, in place, and returns what was done.

    Raises:
        ModelError: nothing would be left of a group, or a module does not fit its group; the network is as
            it was.
    """
    narrowed = [group for group in groups if len(kept.get(group.name, range(group.width))) < group.width]
    for group in narrowed:
        _check_kept(group, kept[group.name])
    records = tuple(narrowing_of(group, len(kept[group.name])) for group in narrowed)
    _cut_(model, records, kept)
    return records


def _check_kept(group: Group, units: Sequence[int]) -> None:
    if not units:
        raise ModelError(f"{group.name}: no unit would be left; keep at least one")
    if list(units) != sorted(set(units)) or units[0] < 0 or units[-1] >= group.width:
        raise ModelError(f"{group.name}: units to keep are not ascending numbers below {group.width}")


def narrow_like_(model: nn.Module, narrowings: Sequence[Narrowing]) -> None:
    """Gives a network the shapes of a plan; which units stay does not matter, weights come later.

    Raises:
        ModelError: it is not the network the plan was made for.
    """
    _cut_(model, narrowings, {one.group: range(one.after) for one in narrowings})


@contextlib.contextmanager
def zeroed(model: nn.Module, groups: Iterable[Group], kept: Kept) -> Iterator[None]:
    """Makes all units that are not kept zero at the gates of their groups, for as long as it lasts.

    Raises:
        ModelError: a gate is not there.
    """
    handles = []
    for group in groups:
        gone = sorted(set(range(group.width)) - set(kept.get(group.name, range(group.width))))
        for cut in group.gates:
            lost, module = entries(cut, gone, group.width), layer_named(model, cut.module)
            dim = -1 if isinstance(module, nn.Linear) else -3 if isinstance(module, nn.Conv2d) else 1
            hook = functools.partial(_without, lost=lost, dim=dim)
            handles.append(module.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _without(module: nn.Module, inputs: object, output: Tensor, *, lost: Tensor, dim: int) -> Tensor:
    return output.index_fill(dim, lost, 0)


def entries(cut: Cut, units: Sequence[int], width: int) -> Tensor:
    """Returns where these of `width` units lie along the cut's axis, ascending."""
    starts = (torch.arange(cut.repeats)[:, None] * width + torch.as_tensor(units, dtype=torch.long)).flatten()
    return cut.offset + (starts[:, None] * cut.run + torch.arange(cut.run)).flatten()


def _cut_(model: nn.Module, narrowings: Sequence[Narrowing], kept: Kept) -> None:
    """Gathers what is lost along every axis first: groups side by side would move each other's entries."""
    lost: dict[tuple[str, Axis], list[Tensor]] = defaultdict(list)
    heads: list[tuple[Any, int]] = []
    for one in narrowings:
        for cut in one.cuts:
            _check_within(model, cut, one.before)  # before lists of that length are made
        gone = sorted(set(range(one.before)) - set(kept[one.group]))
        for cut in one.cuts:
            if cut.axis == "head_dim":
                heads.append((layer_named(model, cut.module), one.after))
            else:
                lost[cut.module, cut.axis].append(entries(cut, gone, one.before))
    stays = {place: _staying(model, *place, torch.cat(parts)) for place, parts in lost.items()}
    for (name, axis), left in stays.items():
        _keep_(layer_named(model, name), axis, left)
    for attention, head_dim in heads:
        attention.head_dim = head_dim


def _check_within(model: nn.Module, cut: Cut, units: int) -> None:
    name, module = cut.module, layer_named(model, cut.module)
    if cut.axis == "head_dim":
        found = getattr(module, "head_dim", None)
        if found != units:
            raise ModelError(f"{name}: has heads of {found} dimensions, not of {units}")
        return
    width, needed = _width(module, name, cut.axis), cut.offset + cut.repeats * units * cut.run
    if needed > width:
        raise ModelError(f"{name}: has {width} {cut.axis}, no entry {needed - 1}")


def _staying(model: nn.Module, name: str, axis: Axis, lost: Tensor) -> Tensor:
    width = _width(layer_named(model, name), name, axis)
    stays = torch.ones(width, dtype=torch.bool)
    stays[lost] = False
    return stays.nonzero().flatten()


def _keep_(module: nn.Module, axis: Axis, kept: Tensor) -> None:
    if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
        _select_(module, ("weight", "bias", "running_mean", "running_var"), 0, kept)
        module.num_features = len(kept)
    elif axis == "inputs":
        _select_(module, ("weight",), 1, kept)
        _set_sizes_(module, ("in_channels", "in_features"), len(kept))
    else:
        _select_(module, ("weight", "bias"), 0, kept)
        _set_sizes_(module, ("out_channels", "out_features"), len(kept))
        if axis == "channels":
            _set_sizes_(module, ("in_channels", "groups"), len(kept))


def _width(module: nn.Module, name: str, axis: Axis) -> int:
    found = cast(Any, module)
    match module:
        case nn.BatchNorm2d() | nn.BatchNorm1d():
            return int(found.num_features)
        case nn.Conv2d():
            if axis != "channels" and found.groups != 1:
                raise ModelError(f"{name}: has {found.groups} groups; {axis} alone cannot be taken away")
            if axis == "channels" and not found.groups == found.in_channels == found.out_channels:
                raise ModelError(f"{name}: is not a depthwise convolution")
            return int(found.in_channels if axis == "inputs" else found.out_channels)
        case nn.Linear():
            return int(found.in_features if axis == "inputs" else found.out_features)
    raise ModelError(f"{name}: {type(module).__name__} cannot be narrowed")


def _select_(module: nn.Module, names: Iterable[str], dim: int, kept: Tensor) -> None:
    for name in names:
        tensor = getattr(module, name, None)
        if isinstance(tensor, nn.Parameter):
            smaller = tensor.detach().index_select(dim, kept)
            setattr(module, name, nn.Parameter(smaller, requires_grad=tensor.requires_grad))
        elif isinstance(tensor, Tensor):
            setattr(module, name, tensor.index_select(dim, kept))


def _set_sizes_(module: nn.Module, names: Iterable[str], size: int) -> None:
    for name in names:
        if hasattr(module, name):
            setattr(module, name, size)
