"""Post-training compression: from what is prepared once to the network of any budget.

choose        one candidate per layer under a budget, improved by the true loss
realise       build the chosen network and repair it
compress_to   all of that for one budget
compress_once the same from the start, for the only budget there is: in less memory
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from edgecompress import methods
from edgecompress.core.freed_memory import give_back
from edgecompress.core.plugins import discover
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.types import Metric
from edgecompress.factors.batch_norm import correct_statistics_
from edgecompress.factors.repair import repair_
from edgecompress.methods.contract import Fill, Method
from edgecompress.methods.lowrank import forget_factors
from edgecompress.nets.chains import filled_block
from edgecompress.nets.modules import layer_named, replace_
from edgecompress.pipeline.evaluate import divergences, is_clearly_worse, log_probabilities
from edgecompress.pipeline.plan_loss import PlanLoss
from edgecompress.pipeline.preparation import Prepared, Recipe, Setting, prepare, timed
from edgecompress.search.contract import Choices, Problem, plan_hash
from edgecompress.search.local import Loss, improve

LOCAL_SEARCH_EVALUATIONS = 120
LOCAL_SEARCH_IMAGES, LOCAL_SEARCH_PIXELS = 256, 1 << 22
"""At most so many, so that trying a trade stays cheap for large images too."""
SHORT_REPAIR_IMAGES = 128


@dataclass
class Compressed:
    """A compressed network and how it came about."""

    module: nn.Module
    choices: Choices
    steps: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


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


def compress_once(
    setting: Setting, recipe: Recipe, metric: Metric, limit: float, progress: Progress
) -> tuple[Compressed, tuple[tuple[str, str], ...]]:
    """Prepares and compresses; what repair does not need is freed before it: a gigabyte for ResNet-18.

    Returns the layers no method could take, too, each with the reason.

    Raises:
        BudgetError: the limit cannot be reached.
        EdgeCompressError: as for `prepare`.
    """
    prepared = prepare(setting, recipe, progress)
    chosen = choose(prepared, prepared.problem(metric, limit), progress)
    result = _built(prepared, chosen.choices)
    prepared = prepared.for_repair()
    forget_factors()
    give_back()
    _mend_(result, prepared, progress)
    result.steps[:0] = chosen.steps
    result.seconds = {**prepared.seconds, **chosen.seconds, **result.seconds}
    return result, prepared.skipped


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
    with timed(seconds, "allocation"):
        choices = prepared.selection.select(problem)
    if not (prepared.recipe.local_search and prepared.selection.needs_errors and choices):
        return Chosen(choices, (), seconds)
    found = improved(prepared, problem, choices, progress)
    return replace(found, seconds={**seconds, **found.seconds})


def improved(prepared: Prepared, problem: Problem, choices: Choices, progress: Progress) -> Chosen:
    """Returns a plan after local search on the true loss."""
    seconds: dict[str, float] = {}
    with timed(seconds, "local search"):
        choices, told = _searched_locally(prepared, problem, choices, progress)
    return Chosen(choices, (("local search", told),), seconds)


def realise(prepared: Prepared, choices: Choices, progress: Progress) -> Compressed:
    """Builds the network of a plan and repairs it."""
    result = _built(prepared, choices)
    _mend_(result, prepared, progress)
    return result


def _built(prepared: Prepared, choices: Choices) -> Compressed:
    seconds: dict[str, float] = {}
    with timed(seconds, "factors"):
        return Compressed(build(prepared, choices), choices, seconds=seconds)


def _mend_(result: Compressed, prepared: Prepared, progress: Progress) -> None:
    """Refits blocks and corrects batch norms, as the recipe says."""
    if prepared.recipe.refit != "none" and result.choices:
        with timed(result.seconds, "repair"):
            _repair_(result, prepared, progress)
    if prepared.recipe.batch_norm != "keep" and result.choices:
        with timed(result.seconds, "batch norm"):
            _correct_batch_norm_(result, prepared)


def build(prepared: Prepared, choices: Choices) -> nn.Module:
    """Returns a copy of the dense model with the factors of a plan, not yet repaired."""
    network = copy.deepcopy(prepared.setting.model)
    for name in choices:
        replace_(network, name, block_of(prepared, choices, name))
    return network


def filling(prepared: Prepared) -> Fill:
    """Returns what gives the kernels of any candidate; every layer is factorised once per method."""
    layers = {one.layer.name: one.layer for one in prepared.options}
    known = discover(methods, Method)

    @functools.cache
    def fill(method: str, name: str) -> Fill:
        return known[method].factorise(prepared.kernels[name], layers[name], prepared.metrics[name])

    return lambda candidate: fill(candidate.method, candidate.layers[0])(candidate)


def block_of(prepared: Prepared, choices: Choices, name: str) -> nn.Module:
    """Returns what stands at `name` under these choices, with freshly found factors."""
    dense = layer_named(prepared.setting.model, name)
    if name not in choices:
        return copy.deepcopy(dense)
    bias = dense.bias if isinstance(dense.bias, Tensor) else None
    return filled_block(choices[name].blocks[0], filling(prepared)(choices[name]), bias)


def plan_divergence(prepared: Prepared, choices: Choices) -> float:
    """Returns how far a plan's network is from the dense model once it is repaired, in short.

    What repair can make up for should not count against a plan. Judged on all images that are not reported.
    """

    def compute() -> float:
        setting = prepared.setting
        batches = [*few_images(setting.calibration), *few_images(setting.selection)]
        network = build(prepared, choices)
        if prepared.recipe.refit != "none" and choices:
            _repair_shortly_(network, prepared, choices)
        return float(divergences(network, batches, log_probabilities(setting.model, batches)).mean())

    return prepared.memo.number(f"divergence {plan_hash(choices)}", compute)


def _repair_shortly_(network: nn.Module, prepared: Prepared, choices: Choices) -> None:
    """The exact half of the repair on few images: a fifth of the time, and plans rank the same."""
    setting = prepared.setting
    images = setting.calibration[: max(1, SHORT_REPAIR_IMAGES // len(setting.calibration[0]))]
    repair_(
        network,
        setting.model,
        setting.layers,
        choices,
        images,
        prepared.metrics,
        which="second",
        seed=prepared.recipe.seed,
        progress=NO_PROGRESS,
    )


def _searched_locally(
    prepared: Prepared, problem: Problem, choices: Choices, progress: Progress
) -> tuple[Choices, str]:
    loss = true_loss(prepared, choices)
    found = improve(problem, choices, loss, max_evaluations=LOCAL_SEARCH_EVALUATIONS, progress=progress)
    change = _change(found.loss_before, found.loss_after)
    return found.choices, f"{found.trades} of {found.evaluations} moves kept, {change}"


def true_loss(prepared: Prepared, start: Choices) -> Loss:
    """Returns what measures plans near `start` on some calibration images."""
    names = [o.layer.name for o in prepared.options]

    @functools.cache  # not needed at all where every loss is remembered
    def computed() -> PlanLoss:
        batches = few_images(prepared.setting.calibration)
        block = functools.partial(block_of, prepared)
        return PlanLoss(build(prepared, start), start, names, block, batches, prepared.setting.model)

    def loss(attempt: Choices, /, *, near: Choices, bar: float) -> float:
        name = f"loss {plan_hash(attempt)} below {bar!r}"
        return prepared.memo.number(name, lambda: computed()(attempt, near=near, bar=bar))

    return loss


def few_images(batches: Sequence[Tensor]) -> list[Tensor]:
    """Returns the first batches, within the limits of the local search."""
    if not batches:
        return []
    each = batches[0]
    images = min(LOCAL_SEARCH_IMAGES, LOCAL_SEARCH_PIXELS // (each.shape[-1] * each.shape[-2]))
    return list(batches[: max(1, images // len(each))])


def _repair_(result: Compressed, prepared: Prepared, progress: Progress) -> None:
    setting, recipe = prepared.setting, prepared.recipe
    batches = setting.selection or setting.calibration
    reference = log_probabilities(setting.model, batches)
    before = divergences(result.module, batches, reference)
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
    after = divergences(attempt, batches, reference)
    # of few images chance alone makes some worse
    kept = bool(after.isfinite().all()) and not is_clearly_worse(before, after)
    if kept:
        result.module = attempt
    verdict = f"{recipe.refit} factors {'kept' if kept else 'dropped'}"
    result.steps.append(("refit", f"{verdict}, {_change(float(before.mean()), float(after.mean()))}"))


def _correct_batch_norm_(result: Compressed, prepared: Prepared) -> None:
    setting = prepared.setting
    attempt = copy.deepcopy(result.module)
    if correct_statistics_(attempt, setting.model, setting.calibration) == 0:
        return
    batches = setting.selection or setting.calibration
    reference = log_probabilities(setting.model, batches)
    before, after = (float(divergences(one, batches, reference).mean()) for one in (result.module, attempt))
    kept = prepared.recipe.batch_norm == "correct" or after < before
    if kept:
        result.module = attempt
    result.steps.append(("batch norm", f"{'kept' if kept else 'dropped'}, {_change(before, after)}"))


def _change(before: float, after: float) -> str:
    return f"divergence from the dense model {before:.4f} -> {after:.4f}"
