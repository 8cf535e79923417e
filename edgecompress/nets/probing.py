"""Tries on random numbers what reading other people's code cannot show."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from edgecompress.core.types import Group
from edgecompress.errors import ModelError
from edgecompress.nets.narrowing import entries, narrow_

_TOLERANCE = 1e-4
"""Relative to the largest output: rounding grows in deep networks, but what is wrong is off by far more."""

_FOREIGN_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError)
"""What other people's modules raise when they are called in a way they are not made for."""


def with_random_weights(module: nn.Module) -> nn.Module:
    """Returns a copy in eval mode whose parameters all matter: what starts as zero or one does not hide."""
    trial = copy.deepcopy(module).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trial.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * max(fan_in, 1) ** -0.5)
    return trial


def random_like(module: nn.Module, shape: Sequence[int]) -> Tensor:
    """Returns random numbers of a module's own dtype."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return x.to(next(module.parameters(), x))


@torch.no_grad()
def gives(module: nn.Module, x: Tensor, expected: object) -> bool:
    """Tells whether a module of other people runs on `x` and returns what is expected, up to rounding."""
    try:
        output = module(x)
    except _FOREIGN_ERRORS:
        return False
    made, wanted = tree_leaves(output), tree_leaves(expected)
    return len(made) == len(wanted) and all(map(_are_close, made, wanted))


def _are_close(output: object, expected: object) -> bool:
    if not isinstance(output, Tensor) or not isinstance(expected, Tensor) or output.shape != expected.shape:
        return output is expected
    return bool((output - expected).abs().max() <= _TOLERANCE * expected.abs().max())


def cannot_narrow(model: nn.Module, groups: Sequence[Group], input_shape: Sequence[int]) -> tuple[Group, ...]:
    """Returns the groups that cannot lose units which are zero without changing what a module computes.

    Such are groups of code that has a width written in it, or computes something from a width. The shape is
    that of a whole batch; the module is copied and left as it is.
    """
    if not groups or _can_narrow(model, groups, input_shape):
        return ()
    half = len(groups) // 2
    if half == 0:
        return tuple(groups)
    found = (
        *cannot_narrow(model, groups[:half], input_shape),
        *cannot_narrow(model, groups[half:], input_shape),
    )
    return found or tuple(groups)  # each half does alone: only together they fail


@torch.no_grad()
def _can_narrow(model: nn.Module, groups: Sequence[Group], input_shape: Sequence[int]) -> bool:
    """Compares copies: one with every other unit set to zero, one with it taken away."""
    trial, x = with_random_weights(model), random_like(model, input_shape)
    for group in groups:
        for cut in group.gates:
            lost = entries(cut, range(1, group.width, 2), group.width)
            for parameter in trial.get_submodule(cut.module).parameters():
                parameter[lost] = 0.0
    expected = trial(x)
    try:
        narrow_(trial, groups, {group.name: range(0, group.width, 2) for group in groups})
    except ModelError:
        return False
    return gives(trial, x, expected)
