"""`edgecompress train`: trains a model by one of several methods and writes it as a run that can go on."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from edgecompress.core.memo import Memo
from edgecompress.core.plugins import discover, pick
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.runs import RUN_FILE, plain_options, work_directory
from edgecompress.core.store import write_record
from edgecompress.core.train_results import TrainResult
from edgecompress.core.types import Plan, Size
from edgecompress.core.unfinished import BEGUN_FILE, Start, resumable_run
from edgecompress.data.splits import Split, Splits
from edgecompress.errors import ConfigError
from edgecompress.nets.artefact import load, save_artefact
from edgecompress.nets.sources import LoadedModel, build_module, load_model
from edgecompress.pipeline.evaluate import accuracy, batch_size
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.shared_memo import own_runs, shared
from edgecompress.pipeline.train_images import TrainingCounts, training_splits
from edgecompress.train import methods, optimisers
from edgecompress.train.contract import MethodOptions, Objective, TrainMethod
from edgecompress.train.images import TrainingImages, parse_changes
from edgecompress.train.loop import Fitted, Judge, TrainSettings, fit
from edgecompress.train.objectives import (
    Teaching,
    at_precision,
    from_labels,
    from_teacher,
    parse_precision,
)
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings
from edgecompress.train.parallel import is_first, process_group
from edgecompress.train.ranks_used import ranks_used
from edgecompress.train.schedules import parse_schedule

RESULT_FILE = "result.json"
CHECKPOINT_FILE = "training.safetensors"
HOW = ("progress", "resuming")
"""Arguments that are no options of a run."""
RATES = {"adamw": 1e-3, "adam-l2": 1e-3}
OTHER_RATE = 0.1
TRAINED_ALREADY = 0.1
"""The usual learning rates, and what is left of them for weights that are trained already."""


def train(
    model: str,
    *,
    method: str = "plain",
    weights: str | None = None,
    fresh: bool = False,
    data: str | None = None,
    report_data: str | None = None,
    epochs: float = 10.0,
    batch_images: int = 128,
    optimizer: str = "sgd",
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    schedule: str = "cosine",
    warmup: float = 0.05,
    augment: str = "none",
    smoothing: float = 0.0,
    ema: float | None = None,
    clip_norm: float | None = None,
    precision: str = "float32",
    norms: str = "train",
    teacher: str | None = None,
    teacher_weight: float = 0.5,
    temperature: float = 4.0,
    radius: str | None = None,
    scale: str | None = None,
    timing: str = "none",
    factors: int = 2,
    mode: str = "channel",
    smallest: float = 0.01,
    largest: float = 0.25,
    low_rank_share: float = 0.5,
    low_rank_images: float = 1.0,
    energy: float = 0.995,
    nuclear: float = 3e-4,
    least_rank: int = 5,
    refresh: int = 10,
    orthonormal: float = 0.1,
    middle: float = 0.25,
    training_images: int | None = None,
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
    resuming: bool = False,
    progress: Progress = NO_PROGRESS,
) -> TrainResult:
    """Trains a model on labels, or on labels and what a teacher says, and writes the run.

    Starts from the weights the model brings or is given; `fresh` starts from random ones. The epoch that is
    best on the selection images is kept. `factors` to `middle` are for the methods that read them
    (`train/contract.py`). Under `torchrun` every process takes a share of each batch.

    Raises:
        EdgeCompressError: an option, the model or the data is wrong, or training diverged at once.
    """
    options = {key: value for key, value in locals().items() if key not in HOW}
    way = pick(discover(methods, TrainMethod), method, what="method")
    pick(discover(optimisers, Optimiser), optimizer, what="optimizer")
    if norms not in ("train", "frozen"):
        raise ConfigError(f"--norms {norms!r}: not understood; write train or frozen")
    if mode not in ("channel", "spatial"):
        raise ConfigError(f"--mode {mode!r}: not understood; write channel or spatial")
    loaded = _loaded(
        load_model(
            model,
            weights=weights,
            classes=classes,
            input_size=input_size,
            channels=channels,
            mean=mean,
            std=std,
        ),
        fresh=fresh,
        seed=seed,
    )
    counts = TrainingCounts(data, report_data, training_images, selection_images, report_images, seed)
    with process_group(), own_runs(runs_dir) as own_dir:
        splits = training_splits(loaded, counts)
        images = TrainingImages(
            splits.calibration, batch_images, parse_changes(augment, loaded.ref.preprocess.size), seed
        )
        rate = _rate(optimizer, trained=not loaded.random_weights) if lr is None else lr
        settings = TrainSettings(
            steps=_steps(epochs, images),
            schedule=parse_schedule(schedule, warmup=warmup),
            optimiser=optimizer,
            optimiser_settings=OptimiserSettings(
                lr=rate,
                momentum=momentum,
                weight_decay=weight_decay,
                radius=radius,
                scale=scale,
                timing=timing,
            ),
            norms="frozen" if norms == "frozen" else "train",
            ema=ema,
            clip_norm=clip_norm,
        )
        method_options = MethodOptions(
            factors=factors,
            mode="spatial" if mode == "spatial" else "channel",
            smallest=smallest,
            largest=largest,
            low_rank_share=low_rank_share,
            low_rank_images=low_rank_images,
            energy=energy,
            nuclear=nuclear,
            least_rank=least_rank,
            refresh=refresh,
            orthonormal=orthonormal,
            middle=middle,
            seed=seed,
            input_shape=loaded.ref.input_shape,
        )
        objective = at_precision(
            _objective(teacher, Teaching(teacher_weight, temperature), smoothing), parse_precision(precision)
        )
        job = _Job(loaded, splits, images, settings, way, method_options, objective, options, progress)
        inputs = Material(loaded, (), (), splits).inputs
        goes_on = (resuming or _was_restarted(own_dir, name)) and is_first()
        start = Start(own_dir, "train", name, options, seed, inputs, overwrite, goes_on)
        return _run(start, job)


@dataclass(frozen=True)
class _Job:
    loaded: LoadedModel
    splits: Splits
    images: TrainingImages
    settings: TrainSettings
    way: TrainMethod
    method_options: MethodOptions
    objective: Objective
    options: dict[str, object]
    progress: Progress

    @property
    def identity(self) -> str:
        """Says of which training a checkpoint is."""
        told = json.dumps(plain_options(self.options), sort_keys=True) + self.splits.summary.sha256
        return hashlib.sha256((told + str(self.loaded.ref.weights_sha256)).encode()).hexdigest()


def _run(start: Start, job: _Job) -> TrainResult:
    with resumable_run(start) as (run, memo):
        result, network = _trained(job, run.path, shared(memo))
        save_artefact(run.directory, result.plan, network)
        write_record(run.directory / RESULT_FILE, result)
    return result


def _trained(job: _Job, path: Path, memo: Memo) -> tuple[TrainResult, nn.Module]:
    begun = time.perf_counter()
    material = Material(job.loaded, (), (), job.splits)
    before = material.summary(job.loaded.module, job.progress, what="before training")
    course = job.way.begin(copy.deepcopy(job.loaded.module), job.method_options)
    seconds = {"start": time.perf_counter() - begun}
    fitted = fit(
        course,
        job.objective,
        job.images,
        job.settings,
        judge=_judge(job) if len(job.splits.selection) else None,
        held_out_loss=_held_out_loss(job) if len(job.splits.selection) else None,
        checkpoint=memo.path(CHECKPOINT_FILE),
        identity=job.identity,
        progress=job.progress,
    )
    seconds["training"] = fitted.seconds
    begun = time.perf_counter()
    after = material.summary(fitted.module, job.progress, what="trained")
    seconds["report"] = time.perf_counter() - begun
    result = TrainResult(
        run=str(path),
        method=job.way.name,
        optimiser=job.settings.optimiser,
        plan=Plan(model=job.loaded.ref, choices=course.choices),
        dense=before,
        compressed=after,
        epochs=fitted.rows,
        best_epoch=fitted.best_epoch,
        stopped=fitted.stopped,
        split=job.splits.summary,
        ranks_used=ranks_used(fitted.module),
        steps=tuple(_said(job, fitted)),
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
    )
    return result, fitted.module


def _said(job: _Job, fitted: Fitted) -> list[tuple[str, str]]:
    said = []
    if fitted.stopped is not None:
        said.append(("stopped", fitted.stopped))
    if fitted.best_epoch == 0:
        said.append(("kept", "the weights from before: no epoch was better on the selection images"))
    return said


def _loaded(loaded: LoadedModel, *, fresh: bool, seed: int) -> LoadedModel:
    """Returns the model with its weights, or with random ones of that seed."""
    if not fresh and not loaded.random_weights:
        return loaded
    module = build_module(loaded.ref, seed=seed)
    ref = loaded.ref.model_copy(update={"weights": None, "weights_sha256": None})
    return LoadedModel(module, ref, loaded.targets, loaded.data, random_weights=True)


def _rate(optimizer: str, *, trained: bool) -> float:
    return RATES.get(optimizer, OTHER_RATE) * (TRAINED_ALREADY if trained else 1.0)


def _steps(epochs: float, images: TrainingImages) -> int:
    if epochs <= 0:
        raise ConfigError(f"--epochs {epochs:g}: must be above 0")
    return max(1, round(epochs * images.steps_per_epoch))


def _objective(teacher: str | None, teaching: Teaching, smoothing: float) -> Objective:
    if not 0 <= smoothing < 1:
        raise ConfigError(f"--smoothing {smoothing:g}: must be from 0 to below 1")
    if teacher is None:
        return from_labels(smoothing=smoothing)
    network = load(teacher) if (Path(teacher) / RUN_FILE).is_file() else load_model(teacher).module
    return from_teacher(network.eval().requires_grad_(False), teaching, smoothing=smoothing)


def _judge(job: _Job) -> Judge:
    """Returns what judges epochs: top-1 in percent on the selection images."""
    size = batch_size(job.loaded.ref.input_shape)

    def judge(network: nn.Module) -> float:
        return accuracy(network, job.splits.selection, size=size, progress=NO_PROGRESS, what="").top1

    return judge


def _held_out_loss(job: _Job) -> Judge:
    size, split = batch_size(job.loaded.ref.input_shape), job.splits.selection
    return lambda network: mean_loss(network, split, size)


@torch.no_grad()
def mean_loss(network: nn.Module, split: Split, size: int) -> float:
    """Returns the mean cross-entropy on labelled images."""
    total = 0.0
    for images, labels in split.batches(size):
        assert labels is not None  # training on labels has asked for them
        total += float(F.cross_entropy(network(images), labels, reduction="sum"))
    return total / len(split)


def _was_restarted(runs_dir: Path, name: str | None) -> bool:
    """Tells whether torchrun has started all processes again, after one of them died."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return restarts > 0 and name is not None and (work_directory(runs_dir, name) / BEGUN_FILE).is_file()
