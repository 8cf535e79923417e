"""Images of a training: all that are not set aside are trained on, some choose, others are reported on."""

from __future__ import annotations

from dataclasses import dataclass

from edgecompress.data.sources import open_source
from edgecompress.data.splits import Splits, check_labels, image_sets, make_splits
from edgecompress.errors import ConfigError, DataError
from edgecompress.nets.sources import LoadedModel

SELECTION_SHARE, MOST_SELECTION = 0.1, 2000
REPORT_SHARE = 0.2
"""Of a source that does not say which images are for testing."""


@dataclass(frozen=True)
class TrainingCounts:
    """Which images are used for what; None: as usual."""

    data: str | None
    report_data: str | None = None
    training: int | None = None
    selection: int | None = None
    report: int | None = None
    seed: int = 0
    select_on_test: bool = False
    """Of a recovery: choose with images the dense network has not been trained on."""


def training_splits(loaded: LoadedModel, wanted: TrainingCounts) -> Splits:
    """Returns images to train on (as `calibration`), to choose with and to report on; they share none.

    Raises:
        ConfigError: no source of images is known.
        DataError: there are too few, or labels are not of the model's classes.
    """
    spec = wanted.data or loaded.data
    if spec is None:
        raise ConfigError(f"{loaded.ref.source}: no images to train on; pass --data")
    preprocess = loaded.ref.preprocess
    source = open_source(spec, preprocess)
    other = None if wanted.report_data is None else open_source(wanted.report_data, preprocess)
    used_from, reported_from = image_sets(source, other)
    available, report = len(used_from), wanted.report
    if used_from is reported_from:
        report = round(available * REPORT_SHARE) if report is None else report
        available -= report
    selection = _selection(wanted.selection, available)
    training = available - selection if wanted.training is None else wanted.training
    if training < 1:
        raise DataError(f"{used_from.name}: {len(used_from)} images leave none to train on; give more")
    splits = make_splits(
        source,
        calibration=training,
        selection=selection,
        report=report,
        seed=wanted.seed,
        report_source=other,
    )
    for split in (splits.calibration, splits.selection, splits.report):
        if split is not None and loaded.ref.classes is not None:
            check_labels(split, loaded.ref.classes)
    return splits


def _selection(wanted: int | None, available: int) -> int:
    return min(MOST_SELECTION, round(available * SELECTION_SHARE)) if wanted is None else wanted
