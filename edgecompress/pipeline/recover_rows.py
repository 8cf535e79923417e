"""Which units a narrowed network has kept: plans say how many, likeness to the dense network says which.

Units that stay keep their order, so the best match is an ascending choice of dense units with the greatest
sum of correlations, found exactly by dynamic programming. Units easily taken for each other do the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from edgecompress.core.types import Cut, Group, Narrowing, Plan
from edgecompress.factors.refit_narrowed import remaining_outputs
from edgecompress.nets.modules import layer_named
from edgecompress.nets.narrowing import entries
from edgecompress.train.mimic import outputs_of

LEAST_LIKENESS = 0.5
"""Mean correlation below which a match says nothing."""
POSITIONS = 4096
"""Values of each unit that are compared, at most."""


def staying_rows(
    network: nn.Module, dense: nn.Module, plan: Plan, batches: Sequence[Tensor]
) -> dict[str, list[int]]:
    """Returns the outputs of dense modules that stayed, by name of a module that got narrower.

    Groups whose units cannot be told are left out, and with them every module they touch.
    """
    kept, unknown = {}, set[str]()
    for one in plan.narrowings:
        units = _units(network, dense, plan, one, batches)
        if units is None:
            unknown |= {cut.module for cut in one.cuts}
        else:
            kept[one.group] = units
    groups = [_group(one) for one in plan.narrowings if one.group in kept]
    found = remaining_outputs(dense, groups, kept)
    return {name: rows for name, rows in found.items() if name not in unknown}


def _group(one: Narrowing) -> Group:
    return Group(name=one.group, kind=one.kind, width=one.before, cuts=one.cuts, gates=())


def _units(
    network: nn.Module, dense: nn.Module, plan: Plan, one: Narrowing, batches: Sequence[Tensor]
) -> list[int] | None:
    """Returns the units of a group that stayed, ascending; None where that cannot be told."""
    cut = next((cut for cut in one.cuts if _is_alone(dense, plan, one, cut)), None)
    if cut is None:
        return None
    ours, theirs = (
        _values(net, cut, units, batches) for net, units in ((network, one.after), (dense, one.before))
    )
    likeness = ours @ theirs.T
    units = ascending_match(likeness)
    mean = float(likeness[torch.arange(one.after), torch.as_tensor(units)].mean())
    return units if mean >= LEAST_LIKENESS else None


def _is_alone(dense: nn.Module, plan: Plan, one: Narrowing, cut: Cut) -> bool:
    """Tells whether a group has all outputs of a convolution or linear layer to itself."""
    layer = layer_named(dense, cut.module)
    if cut.axis != "outputs" or not isinstance(layer, nn.Conv2d | nn.Linear):
        return False
    makers = Counter(c.module for other in plan.narrowings for c in other.cuts if c.axis == "outputs")
    whole = one.before * cut.run * cut.repeats == len(layer.weight)
    return whole and makers[cut.module] == 1 and cut.offset == 0


@torch.no_grad()
def _values(network: nn.Module, cut: Cut, units: int, batches: Sequence[Tensor]) -> Tensor:
    """Returns what each unit puts out on the images, (units, values), with mean 0 and length 1."""
    seen = []
    for batch in batches:
        with outputs_of(network, [cut.module]) as outputs:
            network(batch)
        output = outputs[cut.module]
        seen.append(output.movedim(1 if output.ndim == 4 else -1, 0).flatten(1))
    channels = torch.cat(seen, 1)
    step = -(-channels.shape[1] // POSITIONS)
    order = entries(cut, range(units), units).reshape(cut.repeats, units, cut.run).transpose(0, 1).flatten()
    values = channels[:, ::step][order].reshape(units, -1).double()
    values = values - values.mean(1, keepdim=True)
    return cast(Tensor, values / values.norm(dim=1, keepdim=True).clamp(min=1e-12))


def ascending_match(likeness: Tensor) -> list[int]:
    """Returns a column for each row, ascending, with the greatest sum; there are at least as many columns."""
    columns = likeness.shape[1]
    best = likeness.new_zeros(columns + 1)  # [j]: of the rows so far, with columns before j
    steps = []
    for row in likeness:
        ends_here = torch.cat([row.new_full((1,), -torch.inf), best[:-1] + row])
        best, chosen = ends_here.cummax(0)
        steps.append(chosen)
    found, before = [], columns
    for chosen in reversed(steps):
        column = int(chosen[before]) - 1
        found.append(column)
        before = column
    return found[::-1]
