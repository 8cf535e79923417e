"""Post-training compression: statistics once, then any number of budgets from one table.

prepare       statistics of the dense model, candidates of every layer with their predicted harm
choose        one candidate per layer under a budget, improved by the true loss
realise       build the chosen network and repair it
compress_to   all of that for one budget

What takes long is kept in a `Memo`, so that a command that was killed does not do it again.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from edgecompress import factors, methods
from edgecompress.core.memo import NO_MEMO, Memo
from edgecompress.core.plugins import discover, pick
from edgecompress.core.progress import Progress
from edgecompress.core.search_results import Slower
from edgecompress.core.types import Layer, Metric
from edgecompress.errors import ConfigError, ModelError
from edgecompress.factors.batch_norm import correct_statistics_
from edgecompress.factors.contract import Factors
from edgecompress.factors.repair import Which, repair_
from edgecompress.methods.contract import Fill, Method
from edgecompress.nets.chains import filled_block
from edgecompress.nets.kept import kept_metrics
from edgecompress.nets.metric import LayerMetric
from edgecompress.nets.modules import layer_named, replace_, weight_of
from edgecompress.pipeline.evaluate import divergence, log_probabilities
from edgecompress.pipeline.plan_loss import PlanLoss
from edgecompress.search import ranks
from edgecompress.search.contract import Choices, Costs, Options, Problem, Selection, plan_hash
from edgecompress.search.local import improve
from edgecompress.search.paying import drop_slower
from edgecompress.search.sensitivity import layer_candidates, predicted_errors

LOCAL_SEARCH_EVALUATIONS = 120
LOCAL_SEARCH_IMAGES, LOCAL_SEARCH_PIXELS = 256, 1 << 22
"""At most so many, so that trying a trade stays cheap for large images too."""
BATCH_NORM = ("auto", "keep", "correct")


@dataclass(frozen=True)
class Recipe:
    """How to compress: the options of `edgecompress compress` that change the result."""

    methods: tuple[str, ...] = ("lowrank",)
    families: tuple[str, ...] = ()
    rank_selection: str = "exact"
    factors: str = "aware"
    refit: Which = "both"
    local_search: bool = True
    batch_norm: str = "auto"
    seed: int = 0

    def check(self) -> None:
        """Raises ConfigError for a name that is not known, before any time is spent."""
        for name in self.methods:
            pick(discover(methods, Method), name, what="method")
        pick(discover(ranks, Selection), self.rank_selection, what="rank selection")
        pick(discover(factors, Factors), self.factors, what="factors")
        if self.batch_norm not in BATCH_NORM:
            raise ConfigError(
                f"batch norm {self.batch_norm!r} is not known; known are: {', '.join(BATCH_NORM)}"
            )

    @property
    def needs_images(self) -> bool:
        """Whether calibration images are used at all."""
        return (
            self.factors != "plain" or self.refit != "none" or self.batch_norm != "keep" or self.local_search
        )


@dataclass(frozen=True)
class Setting:
    """The dense model and the images that may be used on it."""

    model: nn.Module
    layers: tuple[Layer, ...]
    """The layers to compress, in forward order."""
    costs: Mapping[Metric, Costs]
    """In every unit a budget may be given in."""
    calibration: Sequence[Tensor] = ()
    """Batches that shape the weights."""
    selection: Sequence[Tensor] = ()
    """Batches that choose between alternatives."""


@dataclass(frozen=True)
class Prepared:
    """Everything that does not depend on the budget."""

    setting: Setting
    recipe: Recipe
    selection: Selection
    kernels: Mapping[str, Tensor]
    metrics: Mapping[str, LayerMetric]
    options: tuple[Options, ...]
    skipped: tuple[tuple[str, str], ...]
    seconds: Mapping[str, float]
    memo: Memo

    def costing(self, costs: Costs) -> Prepared:
        """Returns the same with other costs in their unit."""
        known = {**self.setting.costs, costs.metric: costs}
        return replace(self, setting=replace(self.setting, costs=known))

    def problem(self, metric: Metric, limit: float) -> Problem:
        """Returns the allocation problem for one budget."""
        costs = self.setting.costs[metric]
        fixed = costs.besides(o.layer for o in self.options)
        return Problem(self.options, self.kernels, metric, limit, fixed, costs.candidate, costs.layer)


@dataclass
class Compressed:
    """A compressed network and how it came about."""

    module: nn.Module
    choices: Choices
    steps: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """What may become of every layer, before anything is computed."""

    options: tuple[Options, ...]
    skipped: tuple[tuple[str, str], ...]
    """Layers no method can take, each with the reason."""
    slower: tuple[Slower, ...] = ()
    """Candidates with fewer MACs that cost more time, by layer and family; none is in `options`."""


def offer(setting: Setting, recipe: Recipe, *, paying: Costs | None = None) -> Offer:
    """Lists candidates; with `paying` only those that cost less than their layer in it.

    Raises:
        ConfigError: a name of the recipe is not known or fits no layer.
    """
    recipe.check()
    chosen = {name: discover(methods, Method)[name] for name in recipe.methods}
    options, skipped = _candidates(setting.layers, chosen, recipe.families)
    if paying is None:
        return Offer(options, skipped)
    kept, slower = drop_slower(options, paying)
    return Offer(kept, skipped, slower)


def prepare(
    setting: Setting,
    recipe: Recipe,
    progress: Progress,
    *,
    offered: Offer | None = None,
    memo: Memo = NO_MEMO,
) -> Prepared:
    """Collects statistics and what every candidate would cost in accuracy.

    Raises:
        ConfigError: a name of the recipe is not known or fits no layer.
        ModelError: weights, activations or gradients are not finite.
    """
    found = offered or offer(setting, recipe)
    seconds: dict[str, float] = {}
    options = found.options
    chosen = {name: discover(methods, Method)[name] for name in recipe.methods}
    selection = discover(ranks, Selection)[recipe.rank_selection]
    with _timed(seconds, "statistics"):
        layers = [o.layer for o in options]
        kernels = {one.name: _kernel(setting.model, one.name) for one in layers}
        finder = discover(factors, Factors)[recipe.factors]
        metrics = kept_metrics(
            memo,
            "statistics",
            [one.name for one in layers],
            lambda: finder.metrics(setting.model, layers, setting.calibration, recipe.seed, progress),
        )
    if selection.needs_errors:
        with _timed(seconds, "sensitivities"):
            options = predicted_errors(options, chosen, kernels, metrics, progress, memo=memo)
    return Prepared(setting, recipe, selection, kernels, metrics, options, found.skipped, seconds, memo)


def _candidates(
    layers: Sequence[Layer], chosen: Mapping[str, Method], families: Sequence[str]
) -> tuple[tuple[Options, ...], tuple[tuple[str, str], ...]]:
    options, skipped = [], []
    for layer in layers:
        found, reason = layer_candidates(layer, chosen.values(), families)
        if reason is None:
            options.append(Options(layer, found))
        else:
            skipped.append((layer.name, reason))
    if families and not options:
        offered = (c.family for layer in layers for c in layer_candidates(layer, chosen.values(), ())[0])
        known = ", ".join(dict.fromkeys(name.partition("(")[0] for name in offered)) or "none"
        raise ConfigError(f"families {','.join(families)!r}: fit no layer; there are: {known}")
    return tuple(options), tuple(skipped)


def _kernel(model: nn.Module, name: str) -> Tensor:
    kernel = weight_of(layer_named(model, name)).double()
    if not bool(kernel.isfinite().all()):
        raise ModelError(f"{name}: its weights are not finite; check the checkpoint")
    return kernel


def compress_to(prepared: Prepared, metric: Metric, limit: float, progress: Progress) -> Compressed:
    """Compresses to a cost of at most `limit` for the whole model.

    Raises:
        BudgetError: that cannot be reached.
    """
    problem = prepared.problem(metric, limit)
    chosen = choose(prepared, problem, progress)
    result = realise(prepared, chosen.choices, progress)
    result.steps[:0] = chosen.steps
    result.seconds = {**prepared.seconds, **chosen.seconds, **result.seconds}
    return result


@dataclass(frozen=True)
class Chosen:
    """Candidates of a plan and how they were found."""

    choices: Choices
    steps: tuple[tuple[str, str], ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


def choose(prepared: Prepared, problem: Problem, progress: Progress) -> Chosen:
    """Chooses one candidate per layer, or none, by the recipe's rule and local search.

    Raises:
        BudgetError: the limit cannot be met.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "allocation"):
        choices = prepared.selection.select(problem)
    if not (prepared.recipe.local_search and prepared.selection.needs_errors and choices):
        return Chosen(choices, (), seconds)
    with _timed(seconds, "local search"):
        choices, told = _searched_locally(prepared, problem, choices, progress)
    return Chosen(choices, (("local search", told),), seconds)


def realise(prepared: Prepared, choices: Choices, progress: Progress) -> Compressed:
    """Builds the network of a plan and repairs it."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "factors"):
        result = Compressed(build(prepared, choices), choices, seconds=seconds)
    if prepared.recipe.refit != "none" and choices:
        with _timed(seconds, "repair"):
            _repair_(result, prepared, progress)
    if prepared.recipe.batch_norm != "keep" and choices:
        with _timed(seconds, "batch norm"):
            _correct_batch_norm_(result, prepared)
    return result


def build(prepared: Prepared, choices: Choices) -> nn.Module:
    """Returns a copy of the dense model with the factors of a plan, not yet repaired."""
    network = copy.deepcopy(prepared.setting.model)
    for name in choices:
        replace_(network, name, _block(prepared, choices, name))
    return network


def filling(prepared: Prepared) -> Fill:
    """Returns what gives the kernels of any candidate; every layer is factorised once per method."""
    layers = {one.layer.name: one.layer for one in prepared.options}
    known = discover(methods, Method)

    @functools.cache
    def fill(method: str, name: str) -> Fill:
        return known[method].factorise(prepared.kernels[name], layers[name], prepared.metrics[name])

    return lambda candidate: fill(candidate.method, candidate.layers[0])(candidate)


def _block(prepared: Prepared, choices: Choices, name: str) -> nn.Module:
    """Returns what stands at `name` under these choices, with freshly found factors."""
    dense = layer_named(prepared.setting.model, name)
    if name not in choices:
        return copy.deepcopy(dense)
    bias = dense.bias if isinstance(dense.bias, Tensor) else None
    return filled_block(choices[name].blocks[0], filling(prepared)(choices[name]), bias)


def plan_divergence(prepared: Prepared, choices: Choices) -> float:
    """Returns how far a plan's network is from the dense model, on the images of the local search."""
    batches = few_images(prepared.setting.calibration)

    def compute() -> float:
        reference = log_probabilities(prepared.setting.model, batches)
        return divergence(build(prepared, choices), batches, reference)

    return prepared.memo.number(f"divergence {plan_hash(choices)}", compute)


def _searched_locally(
    prepared: Prepared, problem: Problem, choices: Choices, progress: Progress
) -> tuple[Choices, str]:
    names = [o.layer.name for o in prepared.options]

    @functools.cache  # not needed at all where every loss is remembered
    def computed() -> PlanLoss:
        batches = few_images(prepared.setting.calibration)
        block = functools.partial(_block, prepared)
        return PlanLoss(build(prepared, choices), choices, names, block, batches, prepared.setting.model)

    def loss(attempt: Choices, *, near: Choices, bar: float) -> float:
        name = f"loss {plan_hash(attempt)} below {bar!r}"
        return prepared.memo.number(name, lambda: computed()(attempt, near=near, bar=bar))

    found = improve(problem, choices, loss, max_evaluations=LOCAL_SEARCH_EVALUATIONS, progress=progress)
    change = _change(found.loss_before, found.loss_after)
    return found.choices, f"{found.trades} of {found.evaluations} moves kept, {change}"


def few_images(batches: Sequence[Tensor]) -> list[Tensor]:
    """Returns the first batches, within the limits of the local search."""
    each = batches[0]
    images = min(LOCAL_SEARCH_IMAGES, LOCAL_SEARCH_PIXELS // (each.shape[-1] * each.shape[-2]))
    return list(batches[: max(1, images // len(each))])


def _repair_(result: Compressed, prepared: Prepared, progress: Progress) -> None:
    setting, recipe = prepared.setting, prepared.recipe
    batches = setting.selection or setting.calibration
    reference = log_probabilities(setting.model, batches)
    before = divergence(result.module, batches, reference)
    attempt = copy.deepcopy(result.module)
    repair_(
        attempt,
        setting.model,
        setting.layers,
        result.choices,
        setting.calibration,
        prepared.metrics,
        which=recipe.refit,
        seed=recipe.seed,
        progress=progress,
    )
    after = divergence(attempt, batches, reference)
    if after < before:
        result.module = attempt
    verdict = f"{recipe.refit} factors {'kept' if after < before else 'dropped'}"
    result.steps.append(("refit", f"{verdict}, {_change(before, after)}"))


def _correct_batch_norm_(result: Compressed, prepared: Prepared) -> None:
    setting = prepared.setting
    attempt = copy.deepcopy(result.module)
    if correct_statistics_(attempt, setting.model, setting.calibration) == 0:
        return
    batches = setting.selection or setting.calibration
    reference = log_probabilities(setting.model, batches)
    before = divergence(result.module, batches, reference)
    after = divergence(attempt, batches, reference)
    kept = prepared.recipe.batch_norm == "correct" or after < before
    if kept:
        result.module = attempt
    result.steps.append(("batch norm", f"{'kept' if kept else 'dropped'}, {_change(before, after)}"))


def _change(before: float, after: float) -> str:
    return f"divergence from the dense model {before:.4f} -> {after:.4f}"


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = time.perf_counter() - start
