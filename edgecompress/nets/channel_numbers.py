"""Tensors of channel numbers, as large as the values they stand for and stored once per channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NEVER, ALWAYS = 0, 1
"""Conditions every table begins with: not known to be zero ever, and zero whatever the weights are."""


@dataclass(frozen=True)
class Flow:
    """What is known of each value of a tensor; both parts have its shape."""

    channels: Tensor
    """The number of the channel it belongs to."""
    zero: Tensor
    """The number of the condition under which it is zero."""

    def never_zero(self) -> Flow:
        """Returns the same channels with nothing known of zeros."""
        return Flow(self.channels, torch.tensor(NEVER).expand(self.channels.shape))


def is_constant(flow: Flow, dim: int) -> bool:
    """Tells whether nothing changes along an axis."""
    return all(_is_constant(part, dim) for part in (flow.channels, flow.zero))


def _is_constant(part: Tensor, dim: int) -> bool:
    if part.shape[dim] < 2 or part.stride(dim) == 0:
        return True
    return bool((part == part.narrow(dim, 0, 1)).all())


def stored_once(flow: Flow) -> Flow:
    """Returns the same numbers, without copies along axes where nothing changes."""
    return Flow(*(_stored_once(part) for part in (flow.channels, flow.zero)))


def _stored_once(part: Tensor) -> Tensor:
    once = part
    for dim in range(part.ndim):
        if _is_constant(once, dim):
            once = once.narrow(dim, 0, min(1, part.shape[dim]))
    return once.expand(part.shape)


def distinct(*parts: Tensor) -> list[Tensor]:
    """Returns tensors of one shape without the axes along which none of them changes (size 1 instead)."""
    for dim in range(parts[0].ndim):
        if all(part.stride(dim) == 0 for part in parts):
            parts = tuple(part.narrow(dim, 0, 1) for part in parts)
    return list(parts)


def along(flow: Flow, dim: int) -> Flow | None:
    """Returns the numbers along one axis; None: they change along another."""
    dim %= flow.channels.ndim
    if not all(is_constant(flow, other) for other in range(flow.channels.ndim) if other != dim):
        return None
    index = tuple(slice(None) if d == dim else 0 for d in range(flow.channels.ndim))
    return Flow(flow.channels[index], flow.zero[index])


def spread(numbers: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    """Returns a tensor of that shape with these numbers along one axis."""
    sizes = [1] * len(shape)
    sizes[dim] = len(numbers)
    return numbers.reshape(sizes).expand(shape)


def resized(flow: Flow, dim: int, size: int) -> Flow:
    """Returns as many copies of what is the same all along an axis."""
    shape = list(flow.channels.shape)
    shape[dim] = size
    return Flow(*(part.narrow(dim, 0, 1).expand(shape) for part in (flow.channels, flow.zero)))


def beside(flow: Flow, dim: int, sides: Sequence[int], filling: tuple[int, int]) -> Flow:
    """Puts so many entries before and after along an axis, all with one channel and one condition."""
    parts = []
    for part, fill in zip((flow.channels, flow.zero), filling, strict=True):
        shapes = [(*part.shape[:dim], side, *part.shape[dim + 1 :]) for side in sides]
        before, after = (torch.tensor(fill).expand(shape) for shape in shapes)
        parts.append(torch.cat([before, part, after], dim))
    return stored_once(Flow(*parts))
