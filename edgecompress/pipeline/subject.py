"""What is exported: the networks a run or a model source stands for, and images to check them with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from edgecompress.core.runs import RUN_FILE, latest_run, read_run
from edgecompress.core.types import ModelRef, Plan, Size
from edgecompress.data.sources import ImageSet, Source, open_source
from edgecompress.data.splits import Split, Splits, image_sets, make_splits
from edgecompress.errors import ArtefactError, ConfigError, EdgeCompressError
from edgecompress.nets.artefact import PLAN_FILE, load, read_plan
from edgecompress.nets.sources import load_model, zoo_entries
from edgecompress.nets.untrained import RANDOM_WEIGHTS, has_random_weights
from edgecompress.nets.weights import PICKLE_SUFFIXES, SAFETENSORS_SUFFIX

EXPORTS = "exports"
"""Directory within a run, and of models that are in no run."""
CALIBRATION_IMAGES = 256
PARITY_IMAGES = 200


@dataclass(frozen=True)
class Subject:
    """Networks to export under one roof."""

    ref: ModelRef
    networks: dict[str, nn.Module]
    """By the name of their files: `dense` and `compressed` for a run, `network` where nothing was dense."""
    directory: Path
    """Where files go when the user does not say."""
    data: str | None
    report_data: str | None
    seed: int
    """Of the run, so that calibration images are the same ones."""
    warnings: tuple[str, ...] = ()
    """What a reader should know of the networks; of those of a run the run says it."""


@dataclass(frozen=True)
class Images:
    """Images to export with, each (N, C, H, W); none is in both."""

    calibration: Tensor
    """For int8 ranges; may be empty."""
    parity: Tensor
    """For comparing outputs."""
    calibration_from: str | None
    parity_from: str


def find_subject(
    model: str | None,
    *,
    runs_dir: Path,
    dense: bool,
    weights: str | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    classes: int | None = None,
) -> Subject:
    """Loads a run (its path or name, None for the latest) or a model source.

    `dense` adds the network a run started from, to compare with, where there is one.

    Raises:
        EdgeCompressError: there is no such run, or a network cannot be loaded.
    """
    run = run_meant(model, runs_dir)
    if run is not None:
        return _from_run(run, dense=dense)
    assert model is not None  # without a name a run is meant
    loaded = load_model(model, weights=weights, input_size=input_size, channels=channels, classes=classes)
    name = stem_of(loaded.ref)
    warnings = (f"weights: {RANDOM_WEIGHTS}",) if has_random_weights(loaded) else ()
    return Subject(loaded.ref, {name: loaded.module}, Path(EXPORTS) / name, loaded.data, None, 0, warnings)


def stem_of(ref: ModelRef) -> str:
    """Returns what files of a model that is in no run are called."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", re.split(r"[:/\\]", ref.source)[-1]).strip("-.")


def run_meant(model: str | None, runs_dir: Path) -> Path | None:
    """Returns the run or artefact a text means, None the latest; None where it means a model source.

    Raises:
        ArtefactError: there is no run, or a directory is not one.
    """
    if model is None:
        return latest_run(runs_dir, containing=PLAN_FILE)
    for path in (Path(model), runs_dir / model):
        if (path / RUN_FILE).is_file() or (path / PLAN_FILE).is_file():
            return path
    if Path(model).is_dir():
        raise ArtefactError(f"{model}: holds no {PLAN_FILE}; it is not a run that can be exported")
    if ":" not in model and Path(model).suffix not in (".py", *PICKLE_SUFFIXES, SAFETENSORS_SUFFIX):
        raise ArtefactError(
            f"{model}: there is no such run in {runs_dir}, and models have a prefix, as zoo:resnet20; "
            "`edgecompress runs` and `edgecompress list models` name what there is"
        )
    return None


def _from_run(path: Path, *, dense: bool) -> Subject:
    plan = read_plan(path)
    ref = plan.model
    run = read_run(path) if (path / RUN_FILE).is_file() else None
    options = {} if run is None else run.options
    started = _started_from(plan)
    networks = {"compressed" if started else "network": load(path)}
    if dense and started:
        networks = {"dense": _original(ref), **networks}
    return Subject(
        ref,
        networks,
        path / EXPORTS,
        _text(options.get("data")) or _own_images(ref),
        _text(options.get("report_data")),
        0 if run is None else run.seed,
    )


def _started_from(plan: Plan) -> bool:
    """Tells whether a run had a network to begin with; searched cells have weights in the run only."""
    changed = plan.narrowings or plan.choices
    return bool(changed or plan.model.weights) or not plan.model.source.startswith("cells:")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _own_images(ref: ModelRef) -> str | None:
    entry = zoo_entries().get(ref.source.removeprefix("zoo:")) if ref.source.startswith("zoo:") else None
    return None if entry is None else entry.data


def _original(ref: ModelRef) -> nn.Module:
    """Loads the dense network of a run.

    Raises:
        ArtefactError: it is no longer the one the run started from.
    """
    at_own_size = ref.source.startswith("zoo:")  # the zoo knows its input
    try:
        loaded = load_model(
            ref.source,
            weights=ref.weights,
            classes=ref.classes,
            input_size=None if at_own_size else ref.preprocess.size,
            channels=None if at_own_size else len(ref.preprocess.mean),
        )
    except EdgeCompressError as error:
        raise type(error)(f"{error}; to export without the dense network pass --no-dense") from None
    if loaded.ref.weights_sha256 != ref.weights_sha256:
        raise ArtefactError(
            f"{ref.weights or ref.source}: the weights changed since the run; "
            "restore them, or pass --no-dense to export without the dense network"
        )
    return loaded.module


def find_images(
    subject: Subject,
    *,
    data: str | None,
    report_data: str | None,
    calibrating: bool,
    calibration: int | None,
    parity: int | None,
) -> Images:
    """Draws images for calibration and others for parity; noise for parity where there are none at all.

    Counts left out are 256 and 200, or two fifths of a small set each.

    Raises:
        DataError: images cannot be read, or are too few.
        ConfigError: a count is below 1, or calibration images are needed and there are none.
    """
    for what, count in (("calibration images", calibration), ("images to compare on", parity)):
        if count is not None and count < 1:
            raise ConfigError(f"{count} {what}: there must be at least 1")
    spec = data or subject.data
    if spec is None:
        if calibrating:
            raise ConfigError(
                f"{subject.ref.source}: int8 needs images to find the ranges of activations; pass --data"
            )
        return _noise(subject.ref, PARITY_IMAGES if parity is None else parity)
    preprocess = subject.ref.preprocess
    source = open_source(spec, preprocess)
    other_spec = report_data or (subject.report_data if data is None else None)
    other = None if other_spec is None else open_source(other_spec, preprocess)
    trained, reported = image_sets(source, other)
    wanted = _count(calibration, CALIBRATION_IMAGES, trained) if calibrating else 0
    return _drawn(source, other, wanted, _count(parity, PARITY_IMAGES, reported), subject.seed)


def _count(asked: int | None, usual: int, images: ImageSet) -> int:
    return min(usual, max(1, len(images) * 2 // 5)) if asked is None else asked


def _drawn(source: Source, other: Source | None, calibration: int, parity: int, seed: int) -> Images:
    drawn, compared = _splits(source, other, calibration, parity, seed)
    calibrating = drawn.calibration.tensors()[0] if calibration else torch.empty(0)
    return Images(
        calibrating,
        compared.tensors()[0],
        f"{calibration} images of {drawn.calibration.images.name}" if calibration else None,
        f"{len(compared)} images of {compared.images.name}",
    )


def _splits(
    source: Source, other: Source | None, calibration: int, parity: int, seed: int
) -> tuple[Splits, Split]:
    """Returns images to calibrate with, and others to compare on: those of the report where it has labels.

    Without labels they are drawn as selection images are, which comes to the same for comparing.
    """
    if image_sets(source, other)[1].labels() is not None:
        drawn = make_splits(
            source, calibration=calibration, selection=0, report=parity, seed=seed, report_source=other
        )
        assert drawn.report is not None  # at least one is asked for
        return drawn, drawn.report
    own = 0 if other else parity
    drawn = make_splits(source, calibration=calibration, selection=own, report=0, seed=seed)
    if other is None:
        return drawn, drawn.selection
    return drawn, make_splits(other, calibration=0, selection=parity, report=0, seed=seed).selection


def _noise(ref: ModelRef, count: int) -> Images:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, *ref.input_shape, generator=generator)
    return Images(torch.empty(0), noise, None, f"{count} images of noise, as no --data was given")
