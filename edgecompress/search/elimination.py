"""Takes units away one by one so that what reads them loses least, the rest making up for what went.

A reader computes W^T x. With G the second moment of x and M = W O W^T, O being the weight of output errors,
the error after the units R went and the weights of the kept units K were solved for again is

    1/2 tr(M_RR (G_RR - G_RK G_KK^-1 G_KR)).

With H = G^-1, taking away unit B alone costs 1/2 tr(H_BB^-1 M_BB); the weights of the others then change by
-H_KB H_BB^-1 W_B, and H loses the part of B (optimal brain surgeon: Hassibi and Stork, 1993). A unit may have
several entries, one per head, that go together, and several readers, whose errors add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgecompress.nets.metric import INPUT_DAMPING, damped

MANY_UNITS = 256
SHARE_AT_ONCE = 1 / 32
"""Of more than many units, this share goes in one round, which saves passes over large matrices.

On the embedded networks that raises the error at half the width by 1 % even where units are few.
"""


@dataclass(frozen=True)
class Reading:
    """One reader of a group, in moments; float64, the entries of a unit side by side."""

    moment: Tensor
    """G, (entries, entries)."""
    gram: Tensor
    """M, of the same shape."""

    def entries(self, width: int) -> int:
        """Returns how many entries each of `width` units has."""
        return len(self.moment) // width


@dataclass(frozen=True)
class Elimination:
    """In which order the units of a group go and what that costs."""

    order: Tensor
    """The unit that goes first comes first."""
    errors: Tensor
    """By number of units kept: 0, 1, ..., width."""

    @property
    def scores(self) -> Tensor:
        """One per unit: the error its going adds, raised where needed so that they rise along the order."""
        added = self.errors.diff().neg().flip(0)
        rising = added.cummax(0).values
        # equal numbers would lose the order; steps far below any real difference keep it
        rising = rising + torch.arange(len(rising)) * (rising[-1] * 1e-12 + torch.finfo(rising.dtype).tiny)
        return torch.empty_like(rising).index_copy(0, self.order, rising)


@torch.no_grad()
def eliminate(readings: Sequence[Reading], width: int) -> Elimination:
    """Returns the order in which units go, least added error first, and the error at every number kept."""
    inverses = [torch.linalg.inv(damped(reading.moment, INPUT_DAMPING)) for reading in readings]
    states = [_State(h, reading.gram) for h, reading in zip(inverses, readings, strict=True)]
    order, added = _in_rounds(states, width)
    lost = torch.cat([torch.zeros(1, dtype=torch.float64), added.cumsum(0)])
    return Elimination(order, lost.flip(0))


@dataclass(frozen=True)
class _State:
    """The units of one reader that are still there."""

    inverse: Tensor
    gram: Tensor

    def part(self, entries: Tensor) -> _State:
        """Returns some of the units as if there were no others."""
        at = (entries[:, None], entries)
        return _State(self.inverse[at], self.gram[at])

    def without(self, gone: Tensor, stays: Tensor) -> _State:
        """Returns the units that stay, their weights having made up for those that went."""
        share = torch.linalg.solve(self.inverse[gone[:, None], gone], self.inverse[gone[:, None], stays]).T
        rest, across = self.part(stays), self.gram[gone[:, None], stays]
        inverse = rest.inverse.sub_(share @ self.inverse[gone[:, None], stays])  # `part` is a copy
        change = share @ (across - self.gram[gone[:, None], gone] @ share.T / 2)
        return _State(inverse, rest.gram.sub_(change).sub_(change.T))

    def costs(self, width: int) -> Tensor:
        """Returns the error each unit would add by going alone."""
        size = len(self.inverse) // width
        inverse, gram = (_diagonal_blocks(matrix, width, size) for matrix in (self.inverse, self.gram))
        traces: Tensor = torch.linalg.solve(inverse, gram).diagonal(dim1=1, dim2=2).sum(1)
        return traces.clamp_min(0) / 2


def _in_rounds(states: Sequence[_State], width: int) -> tuple[Tensor, Tensor]:
    """Returns all units in the order they go, and what each adds.

    The units of one round are those that would add least alone; among themselves they go one by one.
    """
    left, order, added = torch.arange(width), [], []
    while len(left):
        costs = torch.stack([state.costs(len(left)) for state in states]).sum(0)
        count = 1 if len(left) <= MANY_UNITS else max(1, int(SHARE_AT_ONCE * len(left)))
        gone = torch.argsort(costs, stable=True)[:count]
        at_once = torch.zeros(1, dtype=torch.long), costs[gone]
        if len(gone) > 1:
            at_once = _in_rounds([s.part(_entries_of(s, gone, len(left))) for s in states], len(gone))
        order.append(left[gone[at_once[0]]])
        added.append(at_once[1])
        stays = torch.ones(len(left), dtype=torch.bool).index_fill(0, gone, False).nonzero().flatten()
        states = [_shrunk(state, gone, stays, len(left)) for state in states]
        left = left[stays]
    return torch.cat(order), torch.cat(added)


def _shrunk(state: _State, gone: Tensor, stays: Tensor, width: int) -> _State:
    return state.without(_entries_of(state, gone, width), _entries_of(state, stays, width))


def _entries_of(state: _State, units: Tensor, width: int) -> Tensor:
    size = len(state.inverse) // width
    return (units[:, None] * size + torch.arange(size)).flatten()


def _diagonal_blocks(matrix: Tensor, count: int, size: int) -> Tensor:
    at = torch.arange(count)
    return matrix.reshape(count, size, count, size)[at, :, at]
