"""The methods of the scoreboard: each makes a network from the position of a knob, in several variants.

The knob says how much is left, 1 being the dense network: of the predicted milliseconds or the MACs for
low-rank methods, of the channels for those that thin. What that comes to in milliseconds is measured.
Methods of others are used as published, with plain factors and without repair; where one can be used in
several ways, all are tried and the way is chosen on selection images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pruning_baseline import Setting as Pruning
from pruning_baseline import pruned, with_gradients
from scoreboard_names import OURS
from scoreboard_scene import CALIBRATION, SELECTION, Scene, work_folder
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.types import Candidate, Metric
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.nets.artefact import PLAN_FILE, load
from edgecompress.pipeline import strategies
from edgecompress.pipeline.engine import compress_to
from edgecompress.pipeline.latency_costs import read_clock
from edgecompress.pipeline.narrowed import Narrowable, find_narrowable, realise_narrowed
from edgecompress.pipeline.preparation import Prepared, Recipe, Setting, offer, prepare
from edgecompress.pipeline.search import search
from edgecompress.search.contract import Costs, shape_costs
from edgecompress.search.score_contract import ScoreSettings, UnitScores
from edgecompress.search.unit_scores.magnitude import SCORES as MAGNITUDE
from edgecompress.search.unit_selection import FLOORS, kept_by_ratio

PLAIN = {"factors": "plain", "refit": False, "batch_norm": "keep"}
_PUBLISHED = Recipe(factors="plain", refit="none", local_search=False, batch_norm="keep")
_RULES: dict[str, tuple[tuple[str, Metric], ...]] = {
    "ALDS": (("alds-macs", "macs"), ("alds-macs", "ms")),
    "LR-S2": (("lr-s2-published", "ms"), ("lr-s2-published", "macs")),
}
_UNITS = {"macs": "within MACs", "ms": "within our table's ms"}
_LIBRARY_ERRORS = (RuntimeError, ValueError, IndexError, KeyError, AttributeError, TypeError)


@dataclass(frozen=True)
class Variant:
    """One way to use a method."""

    name: str
    make: Callable[[float], nn.Module]
    """Returns the network of a position.

    Raises:
        BudgetError: the method cannot go that far.
    """
    predicted: Callable[[float], float | None] | None = None
    """Returns the share of the time by a latency table, quickly; None: it is not known."""


def variants(method: str, scene: Scene, table: str) -> tuple[Variant, ...]:
    """Returns the ways to use a method on a network, the most promising first."""
    found = _MAKERS[method](scene, table)
    return found[: scene.options.variants]


def _ours(scene: Scene, table: str) -> tuple[Variant, ...]:
    return tuple(
        Variant(name, partial(_searched, scene, table, how)) for name, how in scene.model.ours.items()
    )


def _as_published(scene: Scene, table: str) -> tuple[Variant, ...]:
    how = {"search": "svd-nas-paper", "methods": ("lowrank",)} | PLAIN
    name = f"{scene.options.paper_steps} of 78,125 steps"
    return (Variant(name, partial(_searched, scene, table, how)),)


def _searched(scene: Scene, table: str, how: Mapping[str, Any], knob: float) -> nn.Module:
    """Returns what `edgecompress search` finds for a share of the table's milliseconds; kept as a run."""
    runs = work_folder(scene.options, "runs")
    told = "-".join(str(one) for one in how.values() if isinstance(one, str))
    seed = scene.options.seed
    name = f"{scene.name}-{Path(table).stem}-{told}-{knob:.4f}-{seed}".replace(" ", "_")
    if not (runs / name / PLAN_FILE).is_file():
        strategies.PAPER_STEPS = scene.options.paper_steps
        search(
            scene.model.source,
            latency_table=table,
            budget=f"ms={100 * knob:.4f}%",
            weights=scene.weights,
            data=scene.data,
            calibration_images=CALIBRATION,
            selection_images=SELECTION,
            report_images=0,
            rounds=0,
            seed=seed,
            name=name,
            runs_dir=runs,
            overwrite=True,
            **how,
        )
    return load(runs / name)


def _by_rule(method: str, scene: Scene, table: str) -> tuple[Variant, ...]:
    found = []
    for rule, metric in _RULES[method]:
        how = (scene, table, rule, metric)
        found.append(
            Variant(f"{rule} {_UNITS[metric]}", partial(_allocated, *how), partial(_predicted_share, *how))
        )
    return tuple(found)


def _allocated(scene: Scene, table: str, rule: str, metric: Metric, knob: float) -> nn.Module:
    prepared = _prepared_once(scene, table, rule, metric)
    limit = knob * prepared.setting.costs[metric].dense
    return compress_to(prepared, metric, limit, NO_PROGRESS).module


def _predicted_share(scene: Scene, table: str, rule: str, metric: Metric, knob: float) -> float | None:
    prepared = _prepared_once(scene, table, rule, metric)
    limit = knob * prepared.setting.costs[metric].dense
    try:
        choices = prepared.selection.select(prepared.problem(metric, limit))
    except BudgetError:
        return None
    timed = prepared.problem("ms", 0.0)
    return timed.total(choices) / timed.total({})


def _prepared_once(scene: Scene, table: str, rule: str, metric: Metric) -> Prepared:
    key = f"{rule} {metric} {table}"
    if key not in scene.kept:
        scene.kept[key] = _prepared(scene, table, rule, metric)
    prepared: Prepared = scene.kept[key]
    return prepared


def _prepared(scene: Scene, table: str, rule: str, metric: Metric) -> Prepared:
    costs: dict[Metric, Costs] = shape_costs(scene.material.totals)
    layers = scene.material.layers
    costs["ms"] = _where_known(read_clock(table, scene.loaded, layers).costs())
    setting = Setting(scene.loaded.module, layers, costs, scene.calibration, scene.selection)
    recipe = replace(_PUBLISHED, rank_selection=rule)
    offered = offer(setting, recipe, paying=costs["ms"] if metric == "ms" else None)
    return prepare(setting, recipe, NO_PROGRESS, offered=offered)


def _where_known(costs: Costs) -> Costs:
    """Returns costs at which no rule takes what a table does not cover: it ends where blocks cease to pay."""

    def candidate(one: Candidate) -> float:
        try:
            return costs.candidate(one)
        except ConfigError:
            return math.inf

    return replace(costs, candidate=candidate)


def _library(scene: Scene, table: str) -> tuple[Variant, ...]:
    inner = {
        "inside blocks, multiples of 8": Pruning(round_to=8),
        "inside blocks, ranked together": Pruning(ranked_together=True),
    }
    everywhere = {
        "all layers": Pruning(everything=True),
        "all layers, ranked together": Pruning(everything=True, ranked_together=True),
    }
    ways = (inner if scene.model.inner else {}) | everywhere
    return tuple(Variant(name, partial(_pruned, scene, way)) for name, way in ways.items())


def _pruned(scene: Scene, way: Pruning, knob: float) -> nn.Module:
    if "gradients" not in scene.kept:
        scene.kept["gradients"] = with_gradients(scene.loaded.module, scene.calibration_split)
    try:
        return pruned(scene.kept["gradients"], scene.shape, 1 - knob, way)
    except _LIBRARY_ERRORS as error:  # a network the library cannot prune is a result
        said = str(error).partition("\n")[0]
        raise BudgetError(f"torch-pruning: {type(error).__name__}: {said}") from None


def _thinning(scene: Scene, table: str) -> tuple[Variant, ...]:
    ways = {"inside blocks, multiples of 8": (False, 8), "all layers": (True, 1), "inside blocks": (False, 1)}
    return tuple(Variant(name, partial(_thinned, scene, *way)) for name, way in ways.items())


def _thinned(scene: Scene, residual: bool, multiple: int, knob: float) -> nn.Module:
    """Takes the same share of every group, the units with the smallest weights first."""
    key = f"groups {residual}"
    if key not in scene.kept:
        scene.kept[key] = _scored(scene, residual=residual)
    found, scores = scene.kept[key]
    floors = dict.fromkeys(FLOORS, 1)
    kept = kept_by_ratio(
        found.groups, scores, max(1 - knob, 1e-6), scope="per_layer", floors=floors, multiple=multiple
    )
    return realise_narrowed(found.module, found.groups, kept).module


def _scored(scene: Scene, *, residual: bool) -> tuple[Narrowable, UnitScores]:
    found = find_narrowable(scene.loaded, widths=True, dims=True, residual=residual)
    scores = MAGNITUDE.score(found.module, found.groups, [], ScoreSettings(), scene.options.seed, NO_PROGRESS)
    return found, scores


_MAKERS: dict[str, Callable[[Scene, str], tuple[Variant, ...]]] = {
    OURS: _ours,
    "torch-pruning": _library,
    "uniform thinning": _thinning,
    "ALDS": partial(_by_rule, "ALDS"),
    "LR-S2": partial(_by_rule, "LR-S2"),
    "SVD-NAS, as published": _as_published,
}
