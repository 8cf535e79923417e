"""What a search is asked for: milliseconds, a speed-up, a budget in another unit, or an accuracy to keep."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgecompress.core.types import Budget, Metric
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.search.contract import Costs, Options

USUAL_SPEEDUP = 1.5


@dataclass(frozen=True)
class Goal:
    """A limit, or the accuracy that may be lost for the smallest one."""

    metric: Metric
    budget: Budget | None
    max_drop: float | None = None
    """In percentage points."""


def read_goal(
    *,
    target_ms: float | None,
    target_speedup: float | None,
    max_drop: float | None,
    budget: str | None,
) -> Goal:
    """Returns the one goal that is given; a speed-up of 1.5 when none is.

    Raises:
        ConfigError: several are given, or one is not usable.
    """
    given = {
        "--target-ms": target_ms,
        "--target-speedup": target_speedup,
        "--max-drop": max_drop,
        "--budget": budget,
    }
    named = [flag for flag, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)}: a search has one goal; give one of them")
    if max_drop is not None:
        if not 0 < max_drop < 100:
            raise ConfigError(f"--max-drop {max_drop:g}: give percentage points between 0 and 100")
        return Goal("ms", None, max_drop)
    if budget is not None:
        parsed = Budget.parse(budget)
        return Goal(parsed.metric, parsed)
    if target_ms is not None:
        if not 0 < target_ms < math.inf:
            raise ConfigError(f"--target-ms {target_ms:g}: give a time above 0")
        return Goal("ms", Budget(metric="ms", value=target_ms, relative=False))
    speedup = USUAL_SPEEDUP if target_speedup is None else target_speedup
    if not 1 < speedup < math.inf:
        raise ConfigError(f"--target-speedup {speedup:g}: give more than 1; 1 is the dense model")
    return Goal("ms", Budget(metric="ms", value=1 / speedup, relative=True))


def check_limit(limit: float, costs: Costs, options: tuple[Options, ...]) -> None:
    """Does nothing where some plan can meet a limit that is below the dense model's cost.

    Raises:
        BudgetError: the dense model meets it already, or nothing does.
    """
    unit = costs.metric
    if limit >= costs.dense:
        raise already_met(limit, costs)
    floor = floor_of(costs, options)
    if limit < floor:
        raise BudgetError(
            f"target {limit:.4g} {unit}: cannot be met; the least any plan takes is {floor:.4g} of the dense "
            f"model's {costs.dense:.4g}, so the largest speed-up is {costs.dense / floor:.2f}"
        )


def already_met(limit: float, costs: Costs) -> BudgetError:
    """Returns the error of a target that asks for nothing."""
    return BudgetError(
        f"target {limit:.4g} {costs.metric}: the dense model takes {costs.dense:.4g} already; ask for less"
    )


def floor_of(costs: Costs, options: tuple[Options, ...]) -> float:
    """Returns the least cost of any plan."""
    least = (min(map(costs.candidate, one.candidates)) for one in options)
    return costs.besides(one.layer for one in options) + sum(least)
