"""`edgecompress search`: the best plan for so many milliseconds, and whether the device agrees.

search, measure, correct the calibration, search again, until the measured value is what was asked for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from edgecompress.core.plugins import discover
from edgecompress.core.presets import pick_preset
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.search_results import SearchResult
from edgecompress.core.store import sha256_of, write_record
from edgecompress.core.types import Layer, Size
from edgecompress.core.unfinished import Start, resumable_run
from edgecompress.devices.contract import Options as DeviceOptions
from edgecompress.errors import ConfigError
from edgecompress.nets.artefact import save_artefact
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.joint import narrowable_in
from edgecompress.pipeline.joint_search import searched_jointly
from edgecompress.pipeline.latency_costs import Clock, read_clock
from edgecompress.pipeline.material import ImageOptions, gather
from edgecompress.pipeline.narrowed import Narrowable
from edgecompress.pipeline.preparation import Offer, Recipe
from edgecompress.pipeline.search_goal import read_goal
from edgecompress.pipeline.search_job import Job, searched
from edgecompress.pipeline.shared_memo import own_runs, shared
from edgecompress.pipeline.strategies import Strategy, find_strategy, searches
from edgecompress.pipeline.target_layers import chosen_layers
from edgecompress.search import ranks
from edgecompress.search.contract import Selection
from edgecompress.train.parallel import is_first, process_group

SEARCH_FILE = "search.json"
TABLE = "pixel4.json"
MODEL = "zoo:fashion_resnet"
METHODS = ("lowrank",)
HOW = ("progress", "resuming")
"""Arguments that are no options of a run."""


def search(
    model: str = MODEL,
    *,
    latency_table: str = TABLE,
    target_ms: float | None = None,
    target_speedup: float | None = None,
    max_drop: float | None = None,
    budget: str | None = None,
    front: bool = False,
    space: str = "lowrank",
    search: str = "hybrid",
    weights: str | None = None,
    data: str | None = None,
    report_data: str | None = None,
    methods: tuple[str, ...] = METHODS,
    families: tuple[str, ...] = (),
    factors: str = "aware",
    refit: bool = True,
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
    rounds: int | None = None,
    preset: str = "quick",
    serial: str | None = None,
    benchmark_binary: Path | None = None,
    timeout_s: float = 300.0,
    adb: str = "adb",
    seed: int = 0,
    name: str | None = None,
    runs_dir: Path = Path("runs"),
    overwrite: bool = False,
    resuming: bool = False,
    progress: Progress = NO_PROGRESS,
) -> SearchResult:
    """Searches the plan that keeps most accuracy within a time, builds, repairs and measures it.

    Args:
        model: Source as for `compress`.
        latency_table: Of the device: a file, or the name of a shipped table.
        target_ms: Milliseconds the device may take.
        target_speedup: The same as a share of the dense model's; 1.5 when no goal is given.
        max_drop: Percentage points of accuracy that may be lost on selection images, for the fastest plan.
        budget: In words, as `ms=60%`, `macs=50%` or `params=1.2M`; the last two need no table.
        front: Show the whole trade-off; it is written in any case.
        space: What may become of the model: `lowrank`, `widths`, `dims` or `joint`.
        search: Of `edgecompress list searches`; spaces other than `lowrank` have one of their own.
        weights: Checkpoint; this and the options to `classes` as for `compress`.
        data: Images.
        report_data: Other images for the report.
        methods: Ways to rewrite layers.
        families: Only these of the methods.
        factors: How factors are found.
        refit: Fit the factors to the dense layers' outputs.
        batch_norm: What happens to batch-norm statistics.
        layers: Which may be rewritten.
        calibration_images: Images that shape the weights.
        selection_images: Images that choose.
        report_images: Images that are only reported on.
        input_size: Height and width.
        channels: Of the input.
        mean: Per channel.
        std: Per channel.
        classes: Of the output.
        rounds: How often at most the plan is measured and the search corrected; 0 trusts the table, None
            is 3 where the table's device is at hand and 0 otherwise.
        preset: How long dense and compressed are compared.
        serial: Which phone.
        benchmark_binary: Google's `benchmark_model` for the phone.
        timeout_s: Of one call to the device.
        adb: Program that reaches phones.
        seed: Makes the run repeatable.
        name: Of the run.
        runs_dir: Where runs are kept.
        overwrite: Replace the run of that name.
        resuming: Go on with the unfinished run of that name.
        progress: Shows how far it is.

    Raises:
        EdgeCompressError: an option, the model, the data, the table or the target is wrong.
    """
    options = {key: value for key, value in locals().items() if key not in HOW}
    goal = read_goal(target_ms=target_ms, target_speedup=target_speedup, max_drop=max_drop, budget=budget)
    strategy = find_strategy(search)
    recipe = Recipe(
        methods,
        families,
        strategy.rank_selection,
        strategy.factors or factors,
        "both" if refit else "none",
        strategy.local_search,
        batch_norm,
        seed,
    )
    recipe.check()
    pick_preset(preset)
    if front:
        _check_front(strategy)
    loaded = load_model(
        model, weights=weights, classes=classes, input_size=input_size, channels=channels, mean=mean, std=std
    )
    images = ImageOptions(data, report_data, calibration_images, selection_images, report_images, seed)
    narrowable = None if space == "lowrank" else narrowable_in(loaded, space)
    if narrowable is not None:
        if goal.budget is None:
            raise ConfigError(
                f"--max-drop: works with --space lowrank; give {space} a time or another budget"
            )
        recipe = replace(recipe, rank_selection="exact", local_search=False)
        loaded = replace(loaded, module=narrowable.module)
    names = chosen_layers(loaded, layers) if narrowable is None else _rewritten(loaded, layers, narrowable)
    material = gather(loaded, names, images, images_needed=True)
    clock = None
    if goal.metric == "ms":
        clock = read_clock(latency_table, loaded, material.layers if narrowable is None else ())
        material = replace(material, layers=_timed(material.layers, clock))
    device = DeviceOptions(
        serial=serial, benchmark_binary=benchmark_binary, timeout_s=timeout_s, adb=adb, clean=True
    )
    job = Job(goal, strategy, recipe, material, clock, device, rounds, preset, front, seed, progress)
    # a target out of reach is known before anything takes long
    offered = job.offered() if narrowable is None else job.offered_jointly(low_rank=space == "joint")
    inputs = (
        material.inputs
        | _model_file(loaded)
        | ({} if clock is None else {str(clock.path): clock.table.sha256})
    )
    with process_group(), own_runs(runs_dir) as own_dir:
        start = Start(own_dir, "search", name, options, seed, inputs, overwrite, resuming and is_first())
        return _run(start, job, offered, narrowable)


def _run(start: Start, job: Job, offered: Offer, narrowable: Narrowable | None) -> SearchResult:
    with resumable_run(start) as (run, memo):
        if narrowable is None:
            result, module = searched(job, offered, run.path, shared(memo))
        else:
            result, module = searched_jointly(job, narrowable, offered, run.path, memo)
        save_artefact(run.directory, result.plan, module)
        write_record(run.directory / SEARCH_FILE, result)
    return result


def _rewritten(loaded: LoadedModel, layers: str, narrowable: Narrowable) -> tuple[str, ...]:
    """Returns the layers to compress of a model whose attention was rewritten, with those of its groups."""
    known = {name for name, one in loaded.module.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)}
    kinds = ("head_dim", "hidden")
    inside = (cut.module for one in narrowable.groups if one.kind in kinds for cut in one.cuts)
    return tuple(dict.fromkeys(name for name in (*chosen_layers(loaded, layers), *inside) if name in known))


def _timed(layers: tuple[Layer, ...], clock: Clock) -> tuple[Layer, ...]:
    return tuple(layer for layer in layers if layer.name in clock.calibration.layers)


def _check_front(strategy: Strategy) -> None:
    rules = discover(ranks, Selection)
    if not rules[strategy.rank_selection].needs_errors:
        able = ", ".join(one.name for one in searches().values() if rules[one.rank_selection].needs_errors)
        raise ConfigError(f"--front: {strategy.name} predicts no losses; searches that do are: {able}")


def _model_file(loaded: LoadedModel) -> dict[str, str]:
    """Returns the SHA-256 of the user's own file a model is from, by its path."""
    file = Path(loaded.ref.source.rpartition(":")[0])
    return {str(file): sha256_of(file)} if file.suffix == ".py" and file.is_file() else {}
