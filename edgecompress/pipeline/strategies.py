"""The searches of `edgecompress search`, by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgecompress.core.plugins import discover
from edgecompress.core.progress import Progress
from edgecompress.errors import ConfigError
from edgecompress.pipeline.engine import Chosen, Prepared, choose, filling, plan_divergence
from edgecompress.pipeline.material import Material
from edgecompress.search import ranks
from edgecompress.search.contract import Choices, Problem, Selection, plan_hash
from edgecompress.search.supernet import Found, GradientSettings, search_by_gradient


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


def _hybrid(
    prepared: Prepared, problem: Problem, material: Material, seed: int, progress: Progress
) -> Chosen:
    """Exact and local search, then a short gradient search from there; the better plan is kept."""
    first = choose(prepared, problem, progress)
    if not first.choices:
        return first
    start = time.perf_counter()
    found = _by_gradient(prepared, problem, material, seed, progress, REFINEMENT, first.choices)
    losses = [plan_divergence(prepared, one) for one in (first.choices, found.choices)]
    kept = losses[1] < losses[0]
    told = f"{'kept' if kept else 'dropped'}, divergence {losses[0]:.4f} -> {losses[1]:.4f}"
    return Chosen(
        found.choices if kept else first.choices,
        (*first.steps, ("gradient refinement", told)),
        {**first.seconds, "gradient refinement": time.perf_counter() - start},
    )


def _svd_nas(
    prepared: Prepared, problem: Problem, material: Material, seed: int, progress: Progress
) -> Chosen:
    start = time.perf_counter()
    found = _by_gradient(prepared, problem, material, seed, progress, GradientSettings(), None)
    return Chosen(
        found.choices, (("gradient search", _told(found)),), {"gradient search": time.perf_counter() - start}
    )


def _by_gradient(
    prepared: Prepared,
    problem: Problem,
    material: Material,
    seed: int,
    progress: Progress,
    settings: GradientSettings,
    start: Choices | None,
) -> Found:
    name = f"scores {plan_hash(start or {})} {problem.limit:.9g}.safetensors"
    return search_by_gradient(
        prepared.setting.model,
        problem,
        filling(prepared),
        [(images, None) for images in prepared.setting.calibration],
        settings,
        start=start,
        seed=seed,
        progress=progress,
        checkpoint=prepared.memo.path(name),
    )


def _told(found: Found) -> str:
    return (
        f"{found.steps} steps, loss {found.loss:.4f}, entropy {found.entropy:.2f}, "
        f"elasticity {found.elasticity:.2f}"
    )


REFINEMENT = GradientSettings(steps=60, temperature_start=0.5, epochs=50)
"""Begins where the layers have almost decided: it is to improve a plan, not to find another."""

STRATEGIES = (
    Strategy("hybrid", "exact, local search on the true loss, then gradients", _hybrid, local_search=True),
    Strategy("exact", "least predicted loss over all layers, families and ranks at once", _by_rule),
    Strategy("svd-nas", "gradient search over all candidates, mixed in weight space", _svd_nas),
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
