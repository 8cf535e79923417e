"""Tries groups of channels on a copy of the network: a model may know widths no graph shows."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from edgecompress.core.types import Group
from edgecompress.errors import ModelError
from edgecompress.nets.modules import zero_image
from edgecompress.nets.narrowing import narrow_, zeroed

_TOLERANCE = 1e-3
"""Of the largest output: far above rounding, far below what a wrong channel does."""

Tried = tuple[tuple[Group, ...], tuple[tuple[str, str], ...]]


def tried(model: nn.Module, input_shape: tuple[int, int, int], groups: Sequence[Group]) -> Tried:
    """Returns the groups a network in eval mode really runs without, and those it does not with the reason.

    Some units of all groups are taken away at once; where that fails, culprits are found by halves.
    """
    like = zero_image(model, input_shape)
    image = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    return _tried(model, image, tuple(groups))


def _tried(model: nn.Module, image: Tensor, groups: tuple[Group, ...]) -> Tried:
    why = _failure(model, image, groups) if groups else None
    if why is None:
        return groups, ()
    if len(groups) == 1:
        return (), ((groups[0].name, why),)
    half = len(groups) // 2
    parts = [_tried(model, image, part) for part in (groups[:half], groups[half:])]
    return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]


@torch.no_grad()
def _failure(model: nn.Module, image: Tensor, groups: Sequence[Group]) -> str | None:
    kept = {group.name: _some(group.width, index) for index, group in enumerate(groups)}
    with zeroed(model, groups, kept):
        expected = model(image)
    smaller = copy.deepcopy(model)
    try:
        narrow_(smaller, groups, kept)
        got = smaller(image)
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ModelError) as error:
        return f"the network does not run without some of them: {str(error).strip().splitlines()[0]}"
    return None if _agree(got, expected) else "the network computes something else without them"


def _some(width: int, index: int) -> list[int]:
    """Leaves unlike shares of neighbouring groups, so that nothing comes out even by chance."""
    return [unit for unit in range(width) if unit % (3 + index % 3) != 1]


def _agree(got: object, expected: object) -> bool:
    pairs = zip(tree_leaves(got), tree_leaves(expected), strict=True)
    return all(_close(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor))


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    largest = b.abs().max()
    return not bool(largest.isfinite()) or bool((a - b).abs().max() <= _TOLERANCE * largest)
