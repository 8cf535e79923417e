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
        ModelError: nothing would be left of a group, or a module does not have the width its group says.
    """
    narrowed = [group for group in groups if len(kept.get(group.name, range(group.width))) < group.width]
    for group in narrowed:
        if not kept[group.name]:
            raise ModelError(f"{group.name}: no unit would be left; keep at least one")
    records = tuple(narrowing_of(group, len(kept[group.name])) for group in narrowed)
    _cut_(model, records, kept)
    return records


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
            dim = -1 if isinstance(module, nn.Linear) else 1
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
    for one in narrowings:
        gone = sorted(set(range(one.before)) - set(kept[one.group]))
        for cut in one.cuts:
            if cut.axis == "head_dim":
                _set_head_dim_(layer_named(model, cut.module), cut.module, one)
            else:
                lost[cut.module, cut.axis].append(entries(cut, gone, one.before))
    for (name, axis), parts in lost.items():
        _keep_(layer_named(model, name), name, axis, torch.cat(parts))


def _set_head_dim_(module: Any, name: str, one: Narrowing) -> None:  # noqa: ANN401  # attributes of our attentions
    if getattr(module, "head_dim", None) != one.before:
        raise ModelError(f"{name}: has heads of {getattr(module, 'head_dim', None)}, not {one.before}")
    module.head_dim = one.after


def _keep_(module: nn.Module, name: str, axis: Axis, lost: Tensor) -> None:
    width = _width(module, name, axis)
    if int(lost.max()) >= width:
        raise ModelError(f"{name}: has {width} {axis}, no entry {int(lost.max())}")
    stays = torch.ones(width, dtype=torch.bool)
    stays[lost] = False
    kept = stays.nonzero().flatten()
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
                raise ModelError(
                    f"{name}: is a convolution of {found.groups} groups, of which only all channels"
                )
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
