"""Images of a recovery: all that are not set aside are learnt from, some choose, others are reported on.

What the run that is recovered set aside for its report stays aside, unless the user has some of it choose.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgecompress.core.runs import RUN_FILE, read_run
from edgecompress.core.types import ModelRef, Preprocess
from edgecompress.data.readers.synthetic import SyntheticSet
from edgecompress.data.sources import ImageSet, Source, open_source
from edgecompress.data.splits import Splits, check_labels, image_sets, make_splits
from edgecompress.errors import ConfigError, DataError
from edgecompress.pipeline.train_images import (
    MOST_SELECTION,
    REPORT_SHARE,
    SELECTION_SHARE,
    TrainingCounts,
)

RESULT_FILES = ("search.json", "result.json")


@dataclass(frozen=True)
class ParentImages:
    """What is known of the images of the run that is recovered."""

    data: str | None = None
    report_data: str | None = None
    reported: int | None = None
    """How many it set aside for its report; None: not known."""


def images_of_run(path: Path, *, seen: frozenset[Path] = frozenset()) -> ParentImages:
    """Reads which images a run used from its files, or from those of the run it began with, if they tell.

    Runs that were `seen` are not read again: files may say that a run began with itself.
    """
    if not (path / RUN_FILE).is_file() or path.resolve() in seen:
        return ParentImages()
    options = read_run(path).options
    before = options.get("run")
    inherited = ParentImages()
    if before is not None:
        inherited = images_of_run(Path(str(before)), seen=seen | {path.resolve()})
    file = next((path / name for name in RESULT_FILES if (path / name).is_file()), None)
    split = {} if file is None else json.loads(file.read_text(encoding="utf-8")).get("split") or {}
    data, report_data = (options.get(key) for key in ("data", "report_data"))
    return ParentImages(
        inherited.data if data is None else str(data),
        inherited.report_data if report_data is None else str(report_data),
        split.get("report"),
    )


def recovery_splits(ref: ModelRef, own: str | None, wanted: TrainingCounts, parent: ParentImages) -> Splits:
    """Returns images to learn from (as `calibration`), to choose with and to report on; they share none.

    Sources that are not given are those of the run, or `own`, the model's.

    Raises:
        ConfigError: no source is known, or the report would take images the run was made with.
        DataError: there are too few, or labels are not of the model's classes.
    """
    usual = parent.data or own
    spec = wanted.data or usual
    if spec is None:
        raise ConfigError(
            f"{ref.source}: no images to recover with; pass --data (labels are not needed), or as "
            "--synthetic a run of `edgecompress synthesize`"
        )
    source = open_source(spec, ref.preprocess)
    other = _report_source(source, spec, usual, wanted.report_data or parent.report_data, ref.preprocess)
    used_from, reported_from = image_sets(source, other)
    shared = used_from is reported_from
    report = _reported(wanted, parent, used_from, shared=shared, same=spec == usual)
    available = len(used_from) - (report or 0 if shared else 0)
    choosing_from = len(reported_from) if wanted.select_on_test else available
    usual_count = max(1, min(MOST_SELECTION, round(choosing_from * SELECTION_SHARE)))
    selection = usual_count if wanted.selection is None else wanted.selection
    if wanted.select_on_test and wanted.report is None and report is not None:
        report = min(report, len(reported_from) - selection)  # the run may have reported on all of them
    trained = available - (0 if wanted.select_on_test else selection)
    training = trained if wanted.training is None else wanted.training
    if training < 1:
        raise DataError(f"{used_from.name}: {len(used_from)} images leave none to learn from; give more")
    splits = make_splits(
        source,
        calibration=training,
        selection=selection,
        report=report,
        seed=wanted.seed,
        report_source=other,
        select_on_test=wanted.select_on_test,
    )
    _check(splits, ref)
    return splits


def has_labels(images: ImageSet) -> bool:
    """Tells whether images have labels somebody gave them; synthetic ones have a network's opinion."""
    return images.labels() is not None and not isinstance(images, SyntheticSet)


def _report_source(
    source: Source, spec: str, usual: str | None, report_data: str | None, preprocess: Preprocess
) -> Source | None:
    """Returns other images to report on: those asked for, or the test images of the run's own source."""
    if report_data is not None:
        return open_source(report_data, preprocess)
    if usual is None or spec == usual or source.test is not None:
        return None
    before = open_source(usual, preprocess)
    return None if before.test is None else before


def _reported(
    wanted: TrainingCounts, parent: ParentImages, images: ImageSet, *, shared: bool, same: bool
) -> int | None:
    """Returns how many images to report on; None: all that may be."""
    if not shared:
        return wanted.report if wanted.report is not None else (parent.reported if same else None)
    if not has_labels(images):
        return wanted.report or 0  # asked for in vain, which the splits will say
    known = parent.reported if same else None
    if known is not None and (wanted.report or 0) > known:
        raise ConfigError(
            f"--report-images {wanted.report}: the run set {known} images aside, all others may have shaped "
            "it; ask for as many or fewer, or pass --report-data"
        )
    if wanted.report is not None:
        return wanted.report
    return round(len(images) * REPORT_SHARE) if known is None else known


def _check(splits: Splits, ref: ModelRef) -> None:
    for split in (splits.calibration, splits.selection, splits.report):
        if split is not None and ref.classes is not None:
            check_labels(split, ref.classes)
