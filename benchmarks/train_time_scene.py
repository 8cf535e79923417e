"""What the parts of `bench_train_time.py` share: jobs, settings, scenes, trainings and accuracies."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.data.sources import open_source
from edgecompress.data.splits import Split, Splits, make_splits
from edgecompress.errors import ConfigError
from edgecompress.nets.sources import LoadedModel
from edgecompress.pipeline.evaluate import accuracy
from edgecompress.train.contract import Course
from edgecompress.train.images import TrainingImages, parse_changes
from edgecompress.train.loop import TrainSettings, fit
from edgecompress.train.objectives import from_labels

SELECTION = 2000
"""Training images left out of training: settings are tried out on them."""
WARMUP = 0.05
BATCH = 250
"""Images at once where accuracy is measured."""

Row = dict[str, Any]
Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Job:
    """Something that is done once: a training with one seed, mostly."""

    key: Row
    """What tells it from others, its `name` above all; all its rows have it."""
    rows: Callable[[], Iterable[Row]]


@dataclass(frozen=True)
class Scene:
    """A network and its images, for one seed."""

    loaded: LoadedModel
    splits: Splits
    seed: int
    pilot: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        return self.loaded.ref.input_shape

    @property
    def judged(self) -> Split:
        """Images accuracy is told of."""
        report = self.splits.report
        return self.splits.selection if self.pilot or report is None else report


def settings_of(options: argparse.Namespace, part: str, usual: Chosen) -> Chosen:
    """Returns the settings of a part: the usual ones, but for what `--set PART.NAME=VALUE` says.

    Raises:
        ConfigError: a part has no such setting, or it is another kind of value.
    """
    kinds = {one.name: type(getattr(usual, one.name)) for one in fields(usual)}  # type: ignore[arg-type]
    for text in options.set:
        place, _, value = text.partition("=")
        name = place.removeprefix(f"{part}.")
        if name == place:
            continue
        try:
            usual = replace(usual, **{name: kinds[name](value)})  # type: ignore[type-var]
        except (KeyError, ValueError):
            known = ", ".join(f"{key} ({kind.__name__})" for key, kind in kinds.items())
            raise ConfigError(f"--set {text}: not understood; {part} has {known}") from None
    return usual


def make_scene(
    options: argparse.Namespace, loaded: LoadedModel, data: str | None, images: int, seed: int
) -> Scene:
    """Returns a network with `images` to train on; all test images are reported on."""
    if data is None:
        raise ConfigError(f"{loaded.ref.source}: no images to train on; give --cifar or --fashion")
    source = open_source(data, loaded.ref.preprocess)
    splits = make_splits(source, calibration=images, selection=SELECTION, report=None, seed=seed)
    return Scene(loaded, splits, seed, options.pilot)


def trained(
    scene: Scene, course: Course, settings: TrainSettings, *, batch: int, changes: str
) -> tuple[nn.Module, Row]:
    """Returns the network a course ends with, and how that went."""
    variations = parse_changes(changes, scene.shape[1:])
    images = TrainingImages(scene.splits.calibration, batch, variations, scene.seed)
    course.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
    begun = time.process_time()
    fitted = fit(course, from_labels(), images, settings)
    told = {
        "steps": settings.steps,
        "cpu_s": round(time.process_time() - begun, 1),
        "loss": round(fitted.rows[-1].loss, 4),
    }
    return fitted.module, told


def top1(scene: Scene, network: nn.Module) -> float:
    """Returns the share of right answers in percent."""
    found = accuracy(network.eval(), scene.judged, size=BATCH, progress=NO_PROGRESS, what="")
    return round(found.top1, 3)


def first_images(split: Split, count: int) -> Split:
    """Returns the first images of a split."""
    return replace(split, indices=split.indices[:count])
