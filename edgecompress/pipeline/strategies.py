"""The searches of `edgecompress search`, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgecompress.core.plugins import discover
from edgecompress.core.progress import Progress
from edgecompress.errors import ConfigError
from edgecompress.pipeline.engine import Chosen, Prepared, choose
from edgecompress.pipeline.material import Material
from edgecompress.search import ranks
from edgecompress.search.contract import Problem, Selection


@dataclass(frozen=True)
class Strategy:
    """A way to find a plan."""

    name: str
    summary: str
    choose: Callable[[Prepared, Problem, Material, int, Progress], Chosen]
    """Returns a plan within the problem's limit.

    Raises:
        BudgetError: there is none.
    """
    rank_selection: str = "exact"
    factors: str | None = None
    """Where the search is tied to one way of finding them."""
    local_search: bool = False


def _by_rule(
    prepared: Prepared, problem: Problem, material: Material, seed: int, progress: Progress
) -> Chosen:
    return choose(prepared, problem, progress)


STRATEGIES = (
    Strategy("hybrid", "exact, then local search on the true loss", _by_rule, local_search=True),
    Strategy("exact", "least predicted loss over all layers, families and ranks at once", _by_rule),
)


def searches() -> dict[str, Strategy]:
    """Returns all searches by name; every rank selection is one as well."""
    rules = discover(ranks, Selection)
    by_rule = {
        name: Strategy(name, rule.summary, _by_rule, rank_selection=name) for name, rule in rules.items()
    }
    return {**by_rule, **{one.name: one for one in STRATEGIES}}


def find_strategy(name: str) -> Strategy:
    """Returns a search.

    Raises:
        ConfigError: there is none of that name.
    """
    known = searches()
    if name not in known:
        raise ConfigError(f"search {name!r} is not known; known are: {', '.join(known)}")
    return known[name]
