"""Cuts a source into three parts that share no image: calibration, selection and report.

Calibration images shape the compressed weights, selection images choose between alternatives, report
images are only measured. A report on images that were used before would flatter the result, so it is
an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from edgecompress.core.results import SplitSummary
from edgecompress.data.sources import ImageSet, Source
from edgecompress.errors import ConfigError, DataError

Role = Literal["calibration", "selection", "report"]

_REPORT_SEED = 20170825
"""Fixed: which images are reported does not depend on the seed of a run, so runs can be paired."""
_HASH_BATCH = 64

USUAL_IMAGES = 512


@dataclass(frozen=True)
class Split:
    """Some images of a set and what they may be used for."""

    images: ImageSet
    indices: tuple[int, ...]
    role: Role

    def __len__(self) -> int:
        return len(self.indices)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields images and labels, `size` at a time; the last batch may be smaller."""
        labels = self.images.labels()
        for start in range(0, len(self.indices), size):
            chosen = self.indices[start : start + size]
            yield self.images.images(chosen), None if labels is None else labels[list(chosen)]

    def tensors(self) -> tuple[Tensor, Tensor | None]:
        """Returns all images and labels at once."""
        labels = self.images.labels()
        return self.images.images(self.indices), None if labels is None else labels[list(self.indices)]


@dataclass(frozen=True)
class Splits:
    """The three parts; `calibration` and `selection` may be empty."""

    calibration: Split
    selection: Split
    report: Split | None
    """None when no report was asked for."""
    summary: SplitSummary


def make_splits(
    source: Source,
    *,
    calibration: int,
    selection: int,
    report: int | None = None,
    seed: int,
    report_source: Source | None = None,
    select_on_test: bool = False,
) -> Splits:
    """Draws calibration and selection images from the training part and report images from the test part.

    A source without that division is cut into all three. `report` None takes all images that may be
    reported, 0 takes none. The report images do not depend on `seed`; a larger `calibration` contains
    the smaller one. `report_source` replaces the test part. With `select_on_test` selection images are of the
    test part too, always the same ones, and the report gets what is left of it.

    Raises:
        ConfigError: a count is negative, or there is no test part to select on.
        DataError: there are too few images, report images have no labels, or an image of
            `report_source` is also used for calibration or selection.
    """
    if min(calibration, selection, report or 0) < 0:
        raise ConfigError(f"{calibration=}, {selection=}, {report=}: counts of images cannot be negative")
    used_from, reported_from = image_sets(source, report_source)
    if select_on_test and used_from is reported_from:
        raise ConfigError(f"{source.name}: has no test images to select on; pass some as --report-data")
    draw = _drawn_selecting_on_test if select_on_test else _drawn
    splits = draw(used_from, reported_from, calibration, selection, report, seed)
    _check_disjoint(splits)
    reported = len(splits[2])
    if reported:
        require_labels(splits[2])
        if report_source is not None:
            _check_content(splits)
    name = source.name if report_source is None else f"{source.name}, report on {report_source.name}"
    return Splits(splits[0], splits[1], splits[2] if reported else None, _summarise(splits, name, seed))


def _drawn(
    used_from: ImageSet,
    reported_from: ImageSet,
    calibration: int,
    selection: int,
    report: int | None,
    seed: int,
) -> list[Split]:
    left, reported = _draw_report(used_from, reported_from, report, reserved=calibration + selection)
    drawn = _draw(left, calibration + selection, seed=seed, name=used_from.name)
    return [
        Split(used_from, drawn[:calibration], "calibration"),
        Split(used_from, drawn[calibration:], "selection"),
        Split(reported_from, reported, "report"),
    ]


def _drawn_selecting_on_test(
    used_from: ImageSet,
    reported_from: ImageSet,
    calibration: int,
    selection: int,
    report: int | None,
    seed: int,
) -> list[Split]:
    """The images that choose are the last of the order the report takes its images from, first ones first."""
    order = _shuffled(len(reported_from), _REPORT_SEED)
    kept = max(len(order) - selection, 0)
    wanted = kept if report is None else report
    if wanted > kept or selection > len(order):
        raise DataError(
            f"{reported_from.name}: {len(order)} images, {selection} asked for selection and {wanted} "
            "for the report; ask for fewer"
        )
    drawn = _draw(list(range(len(used_from))), calibration, seed=seed, name=used_from.name)
    return [
        Split(used_from, drawn, "calibration"),
        Split(reported_from, tuple(sorted(order[kept:])), "selection"),
        Split(reported_from, tuple(sorted(order[:wanted])), "report"),
    ]


def with_fewer_reported(splits: Splits, count: int) -> Splits:
    """Returns the same splits with only so many of the report images.

    Raises:
        DataError: there are fewer.
    """
    name, own = splits.summary.source, () if splits.report is None else splits.report.indices
    if count > len(own):
        raise DataError(
            f"{name}: {len(own)} images are set aside for the report, {count} asked for; ask for fewer"
        )
    report = None if splits.report is None or not count else replace(splits.report, indices=own[:count])
    parts = [splits.calibration, splits.selection, report or Split(splits.selection.images, (), "report")]
    return replace(splits, report=report, summary=_summarise(parts, name, splits.summary.seed))


def usual_counts(source: Source, report_source: Source | None = None) -> tuple[int, int]:
    """Returns how many images to calibrate and select with when the user does not say.

    512 each where there are plenty; of a small set two fifths and one fifth, so that a report is left.
    """
    available = len(image_sets(source, report_source)[0])
    return max(1, min(USUAL_IMAGES, available * 2 // 5)), min(USUAL_IMAGES, available // 5)


def image_sets(source: Source, report_source: Source | None) -> tuple[ImageSet, ImageSet]:
    """Returns the images that may be used and those that may be reported on; one set for both in a pool."""
    asked = source if report_source is None else report_source
    used_from = source.pool if source.train is None else source.train
    reported_from = asked.pool if asked.test is None else asked.test
    assert used_from is not None and reported_from is not None, "a reader returned half a division"
    return used_from, reported_from


def _draw_report(
    used_from: ImageSet, reported_from: ImageSet, report: int | None, *, reserved: int
) -> tuple[list[int], tuple[int, ...]]:
    """Returns the indices of `used_from` that are left, and the report's indices."""
    shared = used_from is reported_from
    available = len(reported_from) - (reserved if shared else 0)
    wanted = available if report is None else report
    if wanted > available or (report is None and available < 1):
        kept = f" after {reserved} for calibration and selection" if shared else ""
        raise DataError(
            f"{reported_from.name}: {len(reported_from)} images leave {max(available, 0)}{kept}, "
            f"{'at least one' if report is None else report} asked for the report; ask for fewer"
        )
    order = _shuffled(len(reported_from), _REPORT_SEED)
    reported = tuple(sorted(order[:wanted]))
    return sorted(order[wanted:]) if shared else list(range(len(used_from))), reported


def _draw(left: list[int], count: int, *, seed: int, name: str) -> tuple[int, ...]:
    if count > len(left):
        raise DataError(
            f"{name}: {len(left)} images, {count} asked for calibration and selection; ask for fewer"
        )
    return tuple(left[i] for i in _shuffled(len(left), seed)[:count])


def _shuffled(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _check_disjoint(splits: list[Split]) -> None:
    seen = {(id(split.images), index) for split in splits for index in split.indices}
    assert len(seen) == sum(len(split) for split in splits), "an image is in two splits"


def require_labels(split: Split) -> None:
    """Does nothing when the images have labels.

    Raises:
        DataError: they have none.
    """
    if split.images.labels() is None:
        raise DataError(
            f"{split.images.name}: image folder without labels: good for calibration, not for {split.role}; "
            "sort the images into class folders or write labels.txt"
        )


def check_labels(split: Split, classes: int) -> None:
    """Does nothing when every label is a class of a model with `classes` outputs.

    Raises:
        DataError: a label is out of range, or the class folders are not the model's classes.
    """
    labels, named = split.images.labels(), split.images.classes
    if named is not None and named != classes:
        raise DataError(
            f"{split.images.name}: {named} class folders, but the model has {classes} classes; "
            "the index is the folder's place in sorted order, so use labels.txt for a part of the classes"
        )
    if labels is None or not len(split):
        return
    highest = int(labels[list(split.indices)].max())
    if highest >= classes:
        raise DataError(
            f"{split.images.name}: label {highest} found; the model has {classes} classes, 0 to {classes - 1}"
        )


def _check_content(splits: list[Split]) -> None:
    used = {digest for split in splits[:2] for digest in _hash_images(split)}
    both = sum(digest in used for digest in _hash_images(splits[2])) if used else 0
    if both:
        raise DataError(
            f"{splits[2].images.name}: {both} of {len(splits[2])} report images are also calibration "
            "or selection images; a report needs images that were not used before"
        )


def _hash_images(split: Split) -> Iterator[bytes]:
    for images, _ in split.batches(_HASH_BATCH):
        for image in images:
            yield hashlib.sha256(image.numpy().tobytes()).digest()


def _summarise(splits: list[Split], name: str, seed: int) -> SplitSummary:
    lists = json.dumps([split.indices for split in splits])
    calibration, selection, report = (len(split) for split in splits)
    return SplitSummary(
        source=name,
        calibration=calibration,
        selection=selection,
        report=report,
        seed=seed,
        sha256=hashlib.sha256(lists.encode()).hexdigest(),
    )
