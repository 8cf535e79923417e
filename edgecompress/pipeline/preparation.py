"""What does not depend on a budget: the recipe, the candidates, statistics and predicted harm.

What takes long is kept in a `Memo`, so that a command that was killed does not do it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from edgecompress import factors, methods
from edgecompress.core.freed_memory import give_back
from edgecompress.core.memo import NO_MEMO, Memo
from edgecompress.core.plugins import discover, pick
from edgecompress.core.progress import Progress
from edgecompress.core.search_results import Slower
from edgecompress.core.types import Layer, Metric
from edgecompress.errors import ConfigError, ModelError
from edgecompress.factors.contract import Factors
from edgecompress.factors.repair import Which
from edgecompress.methods.contract import Method
from edgecompress.nets.kept import kept_metrics
from edgecompress.nets.metric import LayerMetric
from edgecompress.nets.modules import layer_named, weight_of
from edgecompress.search import ranks
from edgecompress.search.contract import Costs, Options, Problem, Selection
from edgecompress.search.paying import drop_slower
from edgecompress.search.sensitivity import layer_candidates, predicted_errors

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

    def for_repair(self) -> Prepared:
        """Returns what the repair of a network needs of this: no kernels, candidates and input moments."""
        outputs = {name: LayerMetric(None, one.output) for name, one in self.metrics.items()}
        return replace(self, kernels={}, metrics=outputs, options=())

    def problem(self, metric: Metric, limit: float) -> Problem:
        """Returns the allocation problem for one budget."""
        costs = self.setting.costs[metric]
        fixed = costs.besides(o.layer for o in self.options)
        return Problem(self.options, self.kernels, metric, limit, fixed, costs.candidate, costs.layer)


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
    with timed(seconds, "statistics"):
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
        with timed(seconds, "sensitivities"):
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


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Notes how many seconds the body takes; what it has freed goes back to the system."""
    start = time.perf_counter()
    try:
        yield
    finally:
        give_back()
        seconds[stage] = time.perf_counter() - start
