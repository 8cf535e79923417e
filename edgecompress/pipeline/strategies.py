"""The searches of `edgecompress search`, by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgecompress.core.plugins import discover
from edgecompress.core.progress import Progress
from edgecompress.errors import ConfigError
from edgecompress.pipeline.engine import Chosen, choose, filling, improved, plan_divergence, true_loss
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Prepared
from edgecompress.search import ranks
from edgecompress.search.contract import Choices, Problem, Selection, plan_hash
from edgecompress.search.greedy import cut_ranks
from edgecompress.search.second_branch import add_second_branches
from edgecompress.search.supernet import Found, GradientSettings, search_by_gradient
from edgecompress.search.svd_nas_paper import PUBLISHED, search_by_sampling


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
    """Exact, local and a short gradient search; of their plans the one that is best after a short repair."""
    start = time.perf_counter()
    exact = prepared.selection.select(problem)
    if not exact:
        return Chosen(exact)
    problem = _with_pairs(prepared, problem, exact, progress)
    plans = {"exact": exact, "exact, large errors feared": prepared.selection.select(fearing(problem))}
    found = _best(prepared, plans)
    steps = [("allocation", _named(plans, found))]
    seconds = {"allocation": time.perf_counter() - start}
    local = improved(prepared, problem, found, progress)
    start = time.perf_counter()
    refined = _by_gradient(prepared, problem, seed, progress, REFINEMENT, local.choices).choices
    plans = {"the allocation": found, "local search": local.choices, "gradient refinement": refined}
    found = _best(prepared, plans)
    steps += [*local.steps, ("best after a short repair", _named(plans, found))]
    seconds |= {**local.seconds, "gradient refinement": time.perf_counter() - start}
    return Chosen(found, tuple(steps), seconds)


def fearing(problem: Problem) -> Problem:
    """Returns the problem with errors that grow faster: predictions hold for small ones only."""
    options = (replace(one, errors=tuple(error**FEAR for error in one.errors)) for one in problem.options)
    return replace(problem, options=tuple(options))


def _best(prepared: Prepared, plans: Mapping[str, Choices]) -> Choices:
    """Returns the plan nearest to the dense model; the first one unless another is clearly nearer."""
    first, *others = plans.values()
    best = min(others, key=lambda one: plan_divergence(prepared, one))
    is_nearer = plan_divergence(prepared, best) < CLEARLY * plan_divergence(prepared, first)
    return best if is_nearer else first


def _named(plans: Mapping[str, Choices], found: Choices) -> str:
    return next(name for name, one in plans.items() if one is found)


def _svd_nas(
    prepared: Prepared, problem: Problem, material: Material, seed: int, progress: Progress
) -> Chosen:
    """One branch per layer first, then with a second one on the residual where that helps."""
    start = time.perf_counter()
    one = _by_gradient(prepared, problem, seed, progress, GradientSettings(), None)
    wider = _with_pairs(prepared, problem, one.choices, progress)
    two = _by_gradient(prepared, wider, seed, progress, GradientSettings(), one.choices)
    losses = [plan_divergence(prepared, found.choices) for found in (one, two)]
    best = two if losses[1] < losses[0] else one
    steps = (
        ("gradient search, one branch", f"{_told(one)}, divergence {losses[0]:.4f}"),
        ("gradient search, two branches", f"{_told(two)}, divergence {losses[1]:.4f}"),
    )
    return Chosen(best.choices, steps, {"gradient search": time.perf_counter() - start})


def _with_pairs(prepared: Prepared, problem: Problem, choices: Choices, progress: Progress) -> Problem:
    """Returns the problem with two branches as well, near a plan and where they are quickly found."""
    small = [one for one in problem.options if prepared.kernels[one.layer.name].numel() <= PAIRED_WEIGHTS]
    part = replace(problem, options=tuple(small))
    wider = add_second_branches(part, choices, prepared.metrics, progress=progress).options
    found = {one.layer.name: one for one in wider}
    return replace(problem, options=tuple(found.get(one.layer.name, one) for one in problem.options))


def _as_published(
    prepared: Prepared, problem: Problem, material: Material, seed: int, progress: Progress
) -> Chosen:
    start = time.perf_counter()
    settings = replace(PUBLISHED, steps=PAPER_STEPS, gamma=PAPER_GAMMA)
    found = _by_gradient(prepared, problem, seed, progress, settings, None, search_by_sampling)
    return Chosen(
        found.choices, (("search", _told(found)),), {"gradient search": time.perf_counter() - start}
    )


def _by_cuts(
    prepared: Prepared, problem: Problem, material: Material, seed: int, progress: Progress
) -> Chosen:
    start = time.perf_counter()
    found = cut_ranks(problem, true_loss(prepared, {}), progress=progress)
    told = f"{found.rounds} rounds, {found.evaluations} plans tried, divergence {found.loss:.4f}"
    return Chosen(found.choices, (("cuts", told),), {"cuts": time.perf_counter() - start})


def _by_gradient(
    prepared: Prepared,
    problem: Problem,
    seed: int,
    progress: Progress,
    settings: GradientSettings,
    start: Choices | None,
    run: Callable[..., Found] = search_by_gradient,
) -> Found:
    # rounds of the loop have equal limits, and differ in what the dense model costs
    share = f"{problem.limit:.9g} of {problem.total({}):.9g}"
    name = f"scores {run.__name__} {plan_hash(start or {})} {share}.safetensors"
    return run(
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


FEAR = 1.4
CLEARLY = 0.9
"""Share of the divergence: less of a difference is chance, of so few images."""
REFINEMENT = GradientSettings(steps=30, temperature_start=0.5, epochs=50)
"""Begins where the layers have almost decided: it is to improve a plan, not to find another."""

PAIRED_WEIGHTS = 1 << 18
"""Of the largest layer that is offered two branches: they are found by turns, which takes minutes beyond."""
PAPER_STEPS = 800
"""100 epochs of 512 images. The paper makes 78,125, of 50,000 images."""
PAPER_GAMMA = (0.2, 0.9, 0.05)
"""All the ranges the paper takes for one network or another."""

STRATEGIES = (
    Strategy("hybrid", "exact, local search on the true loss, then gradients", _hybrid, local_search=True),
    Strategy("exact", "least predicted loss over all layers, families and ranks at once", _by_rule),
    Strategy("svd-nas", "gradient search over all candidates, mixed in weight space", _svd_nas),
    Strategy("svd-nas-paper", "the same as published: two sampled per step", _as_published, factors="plain"),
    Strategy(
        "lorita-iter-training",
        "ranks cut layer by layer where the true loss grows least (LoRITa)",
        _by_cuts,
        rank_selection="lorita-global",
    ),
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
