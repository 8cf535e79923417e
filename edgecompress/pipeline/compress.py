"""`edgecompress compress`: shrink a model to a budget, without training, and write it as a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from edgecompress.core.costs import block_macs, block_params
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.results import CompressResult, LayerChange, ModelSummary
from edgecompress.core.runs import create_run
from edgecompress.core.store import write_record
from edgecompress.core.types import Block, Budget, Layer, Metric, Plan, Size
from edgecompress.data.sources import open_source
from edgecompress.data.splits import Split, Splits, check_labels, make_splits, usual_counts
from edgecompress.errors import ConfigError
from edgecompress.factors.repair import Which
from edgecompress.nets.artefact import save_artefact
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.engine import Compressed, Prepared, Recipe, Setting, compress_to, prepare
from edgecompress.pipeline.evaluate import accuracy, batch_size
from edgecompress.pipeline.target_layers import chosen_layers
from edgecompress.search.contract import Choices, shape_costs

RESULT_FILE = "result.json"


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
    counts = (calibration_images, selection_images, report_images)
    splits = _splits(loaded, data, report_data, counts, seed, needed=recipe.needs_images)
    inputs = {} if splits is None else {splits.summary.source: splits.summary.sha256}
    if loaded.ref.weights is not None and loaded.ref.weights_sha256 is not None:
        inputs[loaded.ref.weights] = loaded.ref.weights_sha256
    with create_run(
        runs_dir,
        command="compress",
        name=name,
        options=options,
        seed=seed,
        inputs=inputs,
        overwrite=overwrite,
    ) as run:
        job = _Job(loaded, splits, chosen_layers(loaded, layers), limit, recipe, progress)
        result, compressed = _compressed(job, run.path)
        save_artefact(run.directory, result.plan, compressed.module)
        write_record(run.directory / RESULT_FILE, result)
    return result


@dataclass(frozen=True)
class _Job:
    loaded: LoadedModel
    splits: Splits | None
    names: tuple[str, ...]
    budget: Budget
    recipe: Recipe
    progress: Progress


def _checked_refit(name: str) -> Which:
    known: dict[str, Which] = {"both": "both", "second": "second"}
    if name in known:
        return known[name]
    raise ConfigError(f"refit factors {name!r} is not known; known are: both, second")


def _checked_budget(text: str) -> Budget:
    budget = Budget.parse(text)
    if budget.metric == "ms":
        raise ConfigError(
            f"budget {text!r}: milliseconds need a latency table; compress takes macs or params"
        )
    return budget


def _splits(
    loaded: LoadedModel,
    data: str | None,
    report_data: str | None,
    counts: tuple[int | None, int | None, int | None],
    seed: int,
    *,
    needed: bool,
) -> Splits | None:
    spec = data or loaded.data
    if spec is None:
        if needed:
            raise ConfigError(
                f"{loaded.ref.source}: no images to calibrate with; pass --data, "
                "or --factors plain --no-refit --no-local-search --batch-norm keep"
            )
        return None
    preprocess = loaded.ref.preprocess
    source = open_source(spec, preprocess)
    other = None if report_data is None else open_source(report_data, preprocess)
    usual = usual_counts(source, other)
    calibration = usual[0] if counts[0] is None else counts[0]
    selection = usual[1] if counts[1] is None else counts[1]
    if needed and calibration < 1:
        raise ConfigError(f"{calibration} calibration images: at least 1 is needed with these options")
    splits = make_splits(
        source,
        calibration=calibration,
        selection=selection,
        report=counts[2],
        seed=seed,
        report_source=other,
    )
    if splits.report is not None and loaded.ref.classes is not None:
        check_labels(splits.report, loaded.ref.classes)
    return splits


def _compressed(job: _Job, path: Path) -> tuple[CompressResult, Compressed]:
    shape, network = job.loaded.ref.input_shape, job.loaded.module
    layers, unfit = find_layers(network, job.names, shape)
    dense = _summary(network, job, "dense")
    total: dict[Metric, float] = {"macs": dense.macs, "params": dense.params}
    size = batch_size(shape)
    used = (None, None) if job.splits is None else (job.splits.calibration, job.splits.selection)
    setting = Setting(network, layers, shape_costs(total), _images(used[0], size), _images(used[1], size))
    prepared = prepare(setting, job.recipe, job.progress)
    compressed = compress_to(
        prepared, job.budget.metric, job.budget.limit(total[job.budget.metric]), job.progress
    )
    start = time.perf_counter()
    after = _summary(compressed.module, job, "compressed")
    compressed.seconds["report"] = 2 * (time.perf_counter() - start)
    return _result(job, prepared, compressed, (dense, after), (*unfit, *prepared.skipped), path), compressed


def _images(split: Split | None, size: int) -> list[Tensor]:
    return [] if split is None else [images for images, _ in split.batches(size)]


def _summary(network: nn.Module, job: _Job, what: str) -> ModelSummary:
    rows = profile(network, job.loaded.ref.input_shape)
    report = None if job.splits is None else job.splits.report
    size = batch_size(job.loaded.ref.input_shape)
    return ModelSummary(
        params=total_params(network),
        macs=total_macs(rows),
        weight_bytes=sum(row.weight_bytes for row in rows),
        accuracy=None
        if report is None
        else accuracy(network, report, size=size, progress=job.progress, what=what),
    )


def _result(
    job: _Job,
    prepared: Prepared,
    compressed: Compressed,
    summaries: tuple[ModelSummary, ModelSummary],
    skipped: tuple[tuple[str, str], ...],
    path: Path,
) -> CompressResult:
    layers = prepared.setting.layers
    ordered = tuple(compressed.choices[one.name] for one in layers if one.name in compressed.choices)
    return CompressResult(
        run=str(path),
        plan=Plan(model=job.loaded.ref, choices=ordered, skipped=skipped),
        dense=summaries[0],
        compressed=summaries[1],
        layers=tuple(_change(layer, compressed.choices) for layer in layers),
        split=None if job.splits is None else job.splits.summary,
        steps=(*_warnings(job.loaded), *compressed.steps),
        seconds={stage: round(value, 3) for stage, value in compressed.seconds.items()},
    )


def _warnings(loaded: LoadedModel) -> tuple[tuple[str, str], ...]:
    if not loaded.random_weights:
        return ()
    return (("weights", "random, as no checkpoint was given: costs are real, accuracy means nothing"),)


def _change(layer: Layer, choices: Choices) -> LayerChange:
    dense = Block(branches=((layer.op,),))
    choice = choices.get(layer.name)
    block = dense if choice is None else choice.blocks[0]
    return LayerChange(
        name=layer.name,
        in_size=layer.in_size,
        family="dense" if choice is None else choice.family,
        ranks=() if choice is None else choice.ranks,
        params_before=block_params(dense),
        params_after=block_params(block),
        macs_before=block_macs(dense, layer.in_size),
        macs_after=block_macs(block, layer.in_size),
    )
