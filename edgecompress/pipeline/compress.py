"""`edgecompress compress`: shrink a model to a budget, without training, and write it as a run."""

from __future__ import annotations

import time
from pathlib import Path

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import CompressResult
from edgecompress.core.runs import create_run
from edgecompress.core.store import write_record
from edgecompress.core.types import Budget, Metric, Size
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.factors.repair import Which
from edgecompress.nets.artefact import save_artefact
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.engine import Compressed, compress_once
from edgecompress.pipeline.material import ImageOptions, Material, gather
from edgecompress.pipeline.preparation import Recipe
from edgecompress.pipeline.target_layers import chosen_layers
from edgecompress.search.contract import shape_costs

RESULT_FILE = "result.json"
EXAMPLES = "macs=50% or params=1.2M"


def compress(
    model: str,
    *,
    weights: str | None = None,
    data: str | None = None,
    report_data: str | None = None,
    budget: str = "macs=50%",
    methods: tuple[str, ...] = ("lowrank",),
    families: tuple[str, ...] = (),
    rank_selection: str = "exact",
    factors: str = "aware",
    refit: bool = True,
    refit_factors: str = "both",
    local_search: bool = True,
    batch_norm: str = "auto",
    layers: str = "paper",
    calibration_images: int | None = None,
    selection_images: int | None = None,
    report_images: int | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    classes: int | None = None,
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path = Path("runs"),
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> CompressResult:
    """Compresses a model to a budget and writes the run; labels are used for the report only.

    Raises:
        EdgeCompressError: an option, the model, the data or the budget is wrong. Nothing is written.
    """
    options = {k: v for k, v in locals().items() if k != "progress"}
    fitted = _checked_refit(refit_factors) if refit else "none"
    recipe = Recipe(
        methods,
        families,
        rank_selection,
        factors,
        fitted,
        local_search,
        batch_norm,
        seed,
    )
    recipe.check()
    limit = _checked_budget(budget)
    loaded = load_model(
        model, weights=weights, classes=classes, input_size=input_size, channels=channels, mean=mean, std=std
    )
    images = ImageOptions(data, report_data, calibration_images, selection_images, report_images, seed)
    material = gather(
        loaded,
        chosen_layers(loaded, layers),
        images,
        images_needed=recipe.needs_images,
        otherwise=", or --factors plain --no-refit --no-local-search --batch-norm keep",
    )
    _check_needed(budget, limit, material)
    with create_run(
        runs_dir,
        command="compress",
        name=name,
        options=options,
        seed=seed,
        inputs=material.inputs,
        overwrite=overwrite,
    ) as run:
        result, compressed = _compressed(material, limit, recipe, run.path, progress)
        save_artefact(run.directory, result.plan, compressed.module)
        write_record(run.directory / RESULT_FILE, result)
    return result


def _checked_refit(name: str) -> Which:
    known: dict[str, Which] = {"both": "both", "second": "second"}
    if name in known:
        return known[name]
    raise ConfigError(f"refit factors {name!r} is not known; known are: both, second")


def _checked_budget(text: str) -> Budget:
    budget = Budget.parse(text, examples=EXAMPLES)
    if budget.metric == "ms":
        raise ConfigError(
            f"budget {text!r}: milliseconds need a latency table, use `edgecompress search`; "
            f"for compress write {EXAMPLES}"
        )
    return budget


def _check_needed(text: str, budget: Budget, material: Material) -> None:
    """Raises BudgetError where the dense model meets the budget: the run would be a copy of it."""
    dense = material.totals[budget.metric]
    if budget.limit(dense) >= dense:
        raise BudgetError(
            f"budget {text!r}: the dense model takes {dense:.4g} {budget.metric} already; ask for less, "
            f"as {budget.metric}=50%"
        )


def _compressed(
    material: Material, budget: Budget, recipe: Recipe, path: Path, progress: Progress
) -> tuple[CompressResult, Compressed]:
    network = material.loaded.module
    dense = material.summary(network, progress, what="dense")
    total: dict[Metric, float] = {"macs": dense.macs, "params": dense.params}
    setting, limit = material.setting(shape_costs(total)), budget.limit(total[budget.metric])
    compressed, skipped = compress_once(setting, recipe, budget.metric, limit, progress)
    start = time.perf_counter()
    after = material.summary(compressed.module, progress, what="compressed")
    compressed.seconds["report"] = 2 * (time.perf_counter() - start)
    result = CompressResult(
        run=str(path),
        plan=material.plan(compressed.choices, skipped),
        dense=dense,
        compressed=after,
        layers=material.changes(compressed.choices),
        split=material.split,
        steps=(*material.warnings, *compressed.steps),
        seconds={stage: round(value, 3) for stage, value in compressed.seconds.items()},
    )
    return result, compressed
