"""What is cut to sizes: the network of a run or a model source, its images, and how it was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from edgecompress.core.runs import RUN_FILE, Run, read_run
from edgecompress.core.types import Plan, Size
from edgecompress.data.sources import open_source
from edgecompress.data.splits import Split, Splits, image_sets, make_splits, with_fewer_reported
from edgecompress.errors import ConfigError
from edgecompress.nets.artefact import load, read_plan
from edgecompress.nets.sources import LoadedModel, load_model, loaded_as
from edgecompress.pipeline.subject import EXPORTS, run_meant, stem_of
from edgecompress.pipeline.train_images import TrainingCounts, training_splits
from edgecompress.search.ranks.global_values import RANK_MIN
from edgecompress.train.truncation import Mode

NORM_IMAGES, SELECTION_IMAGES = 2048, 2000
CUT_IN_TRAINING = ("decomposable", "trp")
"""Methods under which all layers, the first and the last too, get used to being cut."""


@dataclass(frozen=True)
class Model:
    """How a model is named on the command line, and where runs are."""

    name: str | None
    runs_dir: Path
    weights: str | None = None
    input_size: Size | None = None
    channels: int | None = None
    classes: int | None = None


@dataclass(frozen=True)
class ElasticImages:
    """Which images are used; None: those of the run or the model, as many as usual."""

    data: str | None = None
    report_data: str | None = None
    norms: int | None = None
    report: int | None = None


@dataclass(frozen=True)
class ElasticSubject:
    """A network to be cut."""

    loaded: LoadedModel
    plan: Plan
    """Its own, without blocks."""
    splits: Splits
    directory: Path
    """In which the directory of the sizes is."""
    data: str
    report_data: str | None
    method: str | None = None
    """It was trained by."""
    mode: Mode = "channel"
    """It was trained for."""
    least_rank: int = RANK_MIN

    def norm_images(self, wanted: int | None) -> Split:
        """Returns the images the statistics of batch norms are found on: some of those that trained."""
        used = self.splits.calibration
        return replace(used, indices=used.indices[: NORM_IMAGES if wanted is None else wanted])

    @property
    def selection(self) -> Split:
        """Images sizes are compared on; of a training that set none aside, the last it drew."""
        own, used = self.splits.selection, self.splits.calibration
        return own if len(own) else replace(used, indices=used.indices[-SELECTION_IMAGES:])

    @property
    def usual_layers(self) -> str:
        """Which layers are cut when the user does not say."""
        return "all" if self.method in CUT_IN_TRAINING else "paper"


def find_elastic(model: Model, images: ElasticImages) -> ElasticSubject:
    """Loads the network and draws its images; those of a training are the ones it used, for the same ends.

    Raises:
        ConfigError: the network is cut already, or there are no images.
        EdgeCompressError: there is no such run, or something cannot be loaded.
    """
    path = run_meant(model.name, model.runs_dir)
    if path is not None:
        return _of_run(path, images)
    assert model.name is not None  # without a name a run is meant
    loaded = load_model(
        model.name,
        weights=model.weights,
        input_size=model.input_size,
        channels=model.channels,
        classes=model.classes,
    )
    directory, data = Path(EXPORTS) / stem_of(loaded.ref), images.data or loaded.data or ""
    splits = _drawn(loaded, images, seed=0)
    return ElasticSubject(loaded, Plan(model=loaded.ref), splits, directory, data, images.report_data)


def _of_run(path: Path, images: ElasticImages) -> ElasticSubject:
    plan = read_plan(path)
    if plan.choices:
        raise ConfigError(
            f"{path}: {plan.choices[0].layers[0]} and others are blocks already; sizes are made of a run of "
            "`edgecompress train`, or of a model source"
        )
    run = read_run(path) if (path / RUN_FILE).is_file() else None
    options: Mapping[str, JsonValue] = {} if run is None else run.options
    own = images
    if images.data is None:
        reported = images.report_data or _text(options, "report_data")
        own = replace(images, data=_text(options, "data"), report_data=reported)
    loaded = loaded_as(plan.model, load(path))
    data = own.data or loaded.data or ""
    if run is None or run.command != "train":
        splits = _drawn(loaded, own, seed=0 if run is None else run.seed)
        return ElasticSubject(loaded, plan, splits, path, data, own.report_data)
    splits = _as_trained(loaded, images, run) if images.data is None else _drawn(loaded, own, seed=run.seed)
    return ElasticSubject(
        loaded,
        plan,
        splits,
        path,
        data,
        own.report_data,
        _text(options, "method"),
        "spatial" if options.get("mode") == "spatial" else "channel",
        _number(options, "least_rank") or RANK_MIN,
    )


def _text(options: Mapping[str, JsonValue], name: str) -> str | None:
    value = options.get(name)
    return None if value is None else str(value)


def _number(options: Mapping[str, JsonValue], name: str) -> int | None:
    value = options.get(name)
    return value if isinstance(value, int) else None


def _as_trained(loaded: LoadedModel, images: ElasticImages, run: Run) -> Splits:
    """Draws the images of a training again; reports on other or on fewer ones where that is asked for.

    What was trained on or chosen with stays what it was: a set without test images of its own is cut in
    three, so a report of another length would move the other two.
    """
    counts = TrainingCounts(
        _text(run.options, "data"),
        _text(run.options, "report_data"),
        _number(run.options, "training_images"),
        _number(run.options, "selection_images"),
        _number(run.options, "report_images"),
        run.seed,
    )
    trained = training_splits(loaded, counts)
    if images.report is None and images.report_data is None:
        return trained
    other = images.report_data or counts.report_data
    asked = training_splits(loaded, replace(counts, report_data=other, report=images.report))
    if _used(asked) == _used(trained):
        return asked
    if images.report is None or images.report_data is not None:
        raise ConfigError(
            f"--report-data {other}: {run.name} was trained and reported on parts of one set; leave it out"
        )
    return with_fewer_reported(trained, images.report)


def _used(splits: Splits) -> tuple[tuple[int, ...], ...]:
    return splits.calibration.indices, splits.selection.indices


def _drawn(loaded: LoadedModel, images: ElasticImages, *, seed: int) -> Splits:
    spec = images.data or loaded.data
    if spec is None:
        raise ConfigError(
            f"{loaded.ref.source}: sizes need images, for batch norms and to be compared on; pass --data"
        )
    preprocess = loaded.ref.preprocess
    source = open_source(spec, preprocess)
    other = None if images.report_data is None else open_source(images.report_data, preprocess)
    used_from, reported_from = image_sets(source, other)
    wanted = NORM_IMAGES if images.norms is None else images.norms
    return make_splits(
        source,
        calibration=max(1, min(wanted, len(used_from) * 2 // 5)),
        selection=max(1, min(SELECTION_IMAGES, len(used_from) // 5)),
        report=0 if reported_from.labels() is None else images.report,
        seed=seed,
        report_source=other,
    )
