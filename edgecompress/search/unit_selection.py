"""Which units stay: by a share that goes, or by what the network may cost.

Scores say in which order the units of a group go. How many go of each group follows from comparing groups,
so scores must be comparable between those that are ranked together. Widths end at multiples that run
fast, and no group gets narrower than its floor.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from edgecompress.core.types import Group
from edgecompress.errors import BudgetError, ConfigError

Scope = Literal["per_type", "global", "per_layer"]
"""What is ranked together: groups of one kind, all groups, or each group by itself."""
Cost = Callable[[Mapping[str, int]], float]
"""Gets the width of every group and returns what the network costs, in any unit."""
Kept = dict[str, list[int]]

FLOORS: Mapping[str, int] = {"head_dim": 8, "hidden": 32, "channels": 8}
"""By kind of group; a group that is no wider stays as it is."""
MULTIPLE = 8


def kept_by_ratio(
    groups: Sequence[Group],
    scores: Mapping[str, Tensor],
    ratio: float,
    *,
    scope: Scope = "per_type",
    floors: Mapping[str, int] = FLOORS,
    multiple: int = MULTIPLE,
) -> Kept:
    """Returns what stays when the share `ratio` with the lowest scores goes.

    Before widths are rounded up, exactly that share of what is ranked together goes, rounded down; of
    equal scores the later unit goes first. What stays at a higher ratio also stays at a lower one.

    Raises:
        ConfigError: the ratio is not between 0 and 1, or the scores do not fit a group.
    """
    if not 0 < ratio < 1:
        raise ConfigError(f"ratio {ratio!r}: the share of units to take away must be above 0 and below 1")
    check_scores(groups, scores)
    kept: Kept = {}
    for pool in _pools(groups, scope):
        counts = _ranked_counts(pool, scores, ratio)
        for group, count in zip(pool, counts, strict=True):
            width = _rounded(max(count, _floor(group, floors)), multiple, group.width)
            kept[group.name] = best_units(scores[group.name], width)
    return {group.name: kept[group.name] for group in groups}


def kept_by_cost(
    groups: Sequence[Group],
    scores: Mapping[str, Tensor],
    limit: float,
    cost: Cost,
    *,
    errors: Mapping[str, Tensor] | None = None,
    floors: Mapping[str, int] = FLOORS,
    multiple: int = MULTIPLE,
) -> Kept:
    """Returns what stays within a limit when units go in blocks, least harm per cost saved first.

    `errors` are, for every group, the harm by number of units kept (0, 1, ..., width); without them the
    harm is the sum of the scores that went. Where the next width saves nothing, the first one that does is
    looked for. At the end blocks that still fit come back, most harmful first.

    Raises:
        BudgetError: the limit cannot be met; the message names the nearest cost that can.
        ConfigError: scores or errors do not fit a group.
    """
    check_scores(groups, scores, finite=True)
    curves = error_curves(scores) if errors is None else errors
    for group in groups:
        if group.name not in curves or len(curves[group.name]) != group.width + 1:
            raise ConfigError(
                f"{group.name}: needs {group.width + 1} errors, one for each number of units kept"
            )
    ladders = {g.name: ladder_of(g, floors, multiple) for g in groups}
    descent = _Descent(ladders, {g.name: curves[g.name].tolist() for g in groups}, cost)
    counts = _give_back(descent, _descend(descent, limit), limit)
    return {name: best_units(scores[name], count) for name, count in counts.items()}


def best_units(scores: Tensor, count: int) -> list[int]:
    """Returns the units with the highest scores, ascending; of equal ones the first."""
    order = torch.sort(scores, descending=True, stable=True).indices
    return sorted(order[:count].tolist())


def error_curves(scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the sum of the scores that went, by number of units kept: 0, 1, ..., width."""
    found = {}
    for name, one in scores.items():
        lost = one.double().sort().values.cumsum(0)  # after one unit went, after two, ...
        found[name] = torch.cat([lost.flip(0), torch.zeros(1, dtype=torch.float64)])
    return found


def check_scores(groups: Sequence[Group], scores: Mapping[str, Tensor], *, finite: bool = False) -> None:
    """Checks that every group has one usable score per unit.

    Raises:
        ConfigError: it has not.
    """
    for group in groups:
        if group.name not in scores:
            raise ConfigError(f"{group.name}: has no scores")
        own = scores[group.name]
        if own.shape != (group.width,):
            raise ConfigError(f"{group.name}: has scores of shape {tuple(own.shape)} for {group.width} units")
        if bool(own.isnan().any()) or (finite and not bool(own.isfinite().all())):
            raise ConfigError(f"{group.name}: some scores are not numbers; check weights and learning rates")


def _pools(groups: Sequence[Group], scope: Scope) -> list[list[Group]]:
    match scope:
        case "per_layer":
            return [[group] for group in groups]
        case "global":
            return [list(groups)] if groups else []
        case "per_type":
            kinds = dict.fromkeys(group.kind for group in groups)
            return [[group for group in groups if group.kind == kind] for kind in kinds]
    raise ConfigError(f"scope {scope!r} is not known; known are: global, per_layer, per_type")


def _ranked_counts(pool: Sequence[Group], scores: Mapping[str, Tensor], ratio: float) -> list[int]:
    """Returns how many units of each group are among the best of the pool."""
    together = torch.cat([scores[group.name].double() for group in pool])
    owners = torch.cat([torch.full((group.width,), i) for i, group in enumerate(pool)])
    gone = math.floor(ratio * len(together) + 1e-9)  # 0.29 * 100 is just below 29
    order = torch.sort(together, descending=True, stable=True).indices[: len(together) - gone]
    return torch.bincount(owners[order], minlength=len(pool)).tolist()


def _floor(group: Group, floors: Mapping[str, int]) -> int:
    return min(max(1, floors.get(group.kind, 1)), group.width)


def _rounded(count: int, multiple: int, width: int) -> int:
    return min(-(-count // multiple) * multiple, width)


def ladder_of(group: Group, floors: Mapping[str, int] = FLOORS, multiple: int = MULTIPLE) -> list[int]:
    """Returns the widths a group may have, falling from its own."""
    least = _rounded(_floor(group, floors), multiple, group.width)
    below = range((group.width - 1) // multiple * multiple, least - 1, -multiple)
    return [group.width, *below]


@dataclass(frozen=True)
class _Descent:
    """What does not change while units go."""

    ladders: Mapping[str, Sequence[int]]
    errors: Mapping[str, Sequence[float]]
    cost: Cost

    def next_step(self, counts: Mapping[str, int], now: float, name: str) -> tuple[float, int, float] | None:
        """Returns harm per cost saved, width and cost of the next width that saves; None: there is none."""
        for width in (w for w in self.ladders[name] if w < counts[name]):
            then = self.cost({**counts, name: width})
            if then < now:
                harm = self.errors[name][width] - self.errors[name][counts[name]]
                return harm / (now - then), width, then
        return None


def _descend(descent: _Descent, limit: float) -> dict[str, int]:
    """Takes blocks away until the limit is met.

    The price of a block is asked for anew only when the block is about to go: as other groups get narrower
    it saves less, hardly ever more.
    """
    counts = {name: widths[0] for name, widths in descent.ladders.items()}
    now, turn = descent.cost(counts), 0
    queue = [(-math.inf, name, -1) for name in counts]
    while now > limit:
        if not queue:
            raise BudgetError(f"limit {limit:.6g}: cannot be met; the nearest reachable is {now:.6g}")
        _, name, asked = heapq.heappop(queue)
        step = descent.next_step(counts, now, name)
        if step is None:
            continue
        price, width, then = step
        if asked == turn or not queue or price <= queue[0][0]:
            counts[name], now, turn = width, then, turn + 1
            heapq.heappush(queue, (-math.inf, name, -1))
        else:
            heapq.heappush(queue, (price, name, turn))
    return counts


def _give_back(descent: _Descent, counts: Mapping[str, int], limit: float) -> dict[str, int]:
    """Returns wider widths where the last blocks went further than the limit asked for."""
    found, waiting = dict(counts), set(counts)
    while waiting:
        offers = [(_relief(descent, found, name), name) for name in waiting]
        name = max(offers)[1]
        wider = [width for width in descent.ladders[name] if width > found[name]]
        if wider and descent.cost({**found, name: wider[-1]}) <= limit:
            found[name] = wider[-1]
        else:
            waiting.discard(name)
    return found


def _relief(descent: _Descent, counts: Mapping[str, int], name: str) -> float:
    """Returns how much less harm there is when one block comes back."""
    wider = [width for width in descent.ladders[name] if width > counts[name]]
    errors = descent.errors[name]
    return errors[counts[name]] - errors[wider[-1]] if wider else -math.inf
