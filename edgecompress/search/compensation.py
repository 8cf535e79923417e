"""Lets the units that stay make up for those that go, without training: readers are solved for again.

What a unit that went would have said is estimated from the others by least squares, and that estimate is put
into the weights of its readers. It has to happen before the units are taken away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from edgecompress.core.types import Cut, Group
from edgecompress.nets.metric import INPUT_DAMPING, damped
from edgecompress.nets.modules import layer_named
from edgecompress.nets.narrowing import Kept, entries
from edgecompress.search.elimination import Reading
from edgecompress.search.readings import reading_cuts


@torch.no_grad()
def make_up_(
    model: nn.Module, groups: Sequence[Group], kept: Kept, readings: Mapping[str, Sequence[Reading]]
) -> None:
    """Changes what the readers of groups weigh the kept units by, in place; what goes is not read any more.

    Products of queries and keys are left as they are: no layer reads them.
    """
    for group in groups:
        units = kept.get(group.name, range(group.width))
        if len(units) < group.width:
            for cut, reading in zip(reading_cuts(group), readings[group.name], strict=False):
                weight = layer_named(model, cut.module).weight
                assert isinstance(weight, Tensor)
                weight.copy_(_solved(weight, group, cut, _estimate(reading, units, cut.repeats)))


def _estimate(reading: Reading, units: Sequence[int], repeats: int) -> Tensor:
    """Returns the matrix that makes entries of all units from those kept; zero where a unit went."""
    at = (torch.as_tensor(units)[:, None] * repeats + torch.arange(repeats)).flatten()
    moment = damped(reading.moment, INPUT_DAMPING)
    found = torch.zeros_like(moment)
    found[at] = torch.linalg.solve(moment[at[:, None], at], moment[at])
    found[:, at] = 0
    found[at, at] = 1  # exact, which solving is not
    return found


def _solved(weight: Tensor, group: Group, cut: Cut, estimate: Tensor) -> Tensor:
    """Returns a reader's weight with the entries of the group replaced; taps and runs are treated alike."""
    new = weight.double().flatten(2) if weight.ndim > 2 else weight.double()[:, :, None]
    places = entries(cut, range(group.width), group.width)
    own = torch.unflatten(
        new[:, places], 1, (cut.repeats, group.width, cut.run)
    )  # (f, repeats, units, run, taps)
    flat = own.permute(0, 3, 4, 2, 1).flatten(3) @ estimate.T
    back = torch.unflatten(flat, 3, (group.width, cut.repeats)).permute(0, 4, 3, 1, 2)
    new = new.index_copy(1, places, back.flatten(1, 3))
    return new.reshape(weight.shape).to(weight)
