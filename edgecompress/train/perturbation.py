"""What passes at other weights need: many tensors as one vector, and everything back where it was."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Tensors = list[Tensor] | tuple[Tensor, ...]

TINY = 1e-12
"""Vectors shorter than this have no direction worth following."""
_LINEAR, _SQUARED = ("momentum_buffer", "exp_avg"), ("exp_avg_sq", "max_exp_avg_sq")
"""What optimisers of torch keep of gradients, and of their squares."""


def gradients(weights: Tensors) -> list[Tensor]:
    """Returns the gradients of weights that have one."""
    return [one.grad for one in weights if one.grad is not None]


def global_norm(tensors: Tensors) -> float:
    """Returns the length of the vector that all tensors make up together."""
    if not tensors:
        return 0.0
    norms = torch.stack(torch._foreach_norm(tensors))
    return float(torch.linalg.vector_norm(norms, dtype=torch.float64))


def has_direction(norm: float) -> bool:
    """Tells whether a vector of this length can be divided by it."""
    return TINY <= norm < math.inf


@contextlib.contextmanager
def moved(weights: Tensors, direction: Tensors, distance: float) -> Iterator[None]:
    """Inside, weights lie `distance` times `direction` further on; afterwards, to the bit where they were."""
    kept = torch._foreach_clone(weights)
    torch._foreach_add_(weights, direction, alpha=distance)
    try:
        yield
    finally:
        torch._foreach_copy_(weights, kept)


@contextlib.contextmanager
def buffers_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Passes inside leave the buffers of modules as they were: statistics that norms keep, above all.

    Norms still use the statistics of their batch. It works for any module, whatever it does with its buffers.
    """
    buffers = [buffer for module in modules for buffer in module.buffers()]
    kept = torch._foreach_clone(buffers) if buffers else ()
    try:
        yield
    finally:
        if buffers:
            torch._foreach_copy_(buffers, kept)


@contextlib.contextmanager
def randomness(state: Tensor | None) -> Iterator[None]:
    """Inside, chance goes as it did from `state` on, and afterwards as if nothing had been drawn inside.

    None: chance just goes on.
    """
    if state is None:
        yield
        return
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(after)


def decay_(group: dict[str, Any]) -> None:
    """Shrinks the weights of a group that have a gradient by its rate of decay."""
    moving = [one for one in group["params"] if one.grad is not None]
    if moving and group["weight_decay"] != 0:
        torch._foreach_mul_(moving, 1 - float(group["lr"]) * group["weight_decay"])


def rescale_(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Makes what an optimiser keeps of gradients what it would be had they been `factor` times as long."""
    for kept in optimizer.state.values():
        for names, power in ((_LINEAR, 1), (_SQUARED, 2)):
            for name in names:
                if kept.get(name) is not None:
                    kept[name].mul_(factor**power)
