"""The labelled images of a topology search: two halves to search on, others to report on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edgecompress.core.types import Preprocess, Size
from edgecompress.data.sources import ImageSet, Source, open_source
from edgecompress.data.splits import Split, Splits, check_labels, image_sets, make_splits, require_labels
from edgecompress.errors import ConfigError, DataError
from edgecompress.search.image_pool import ImagePool

FASHION_MNIST = Preprocess(size=(28, 28), mean=(0.2860,), std=(0.3530,))
"""Of the images that come along."""
USUAL_IMAGES = 20_000


@dataclass(frozen=True)
class SearchImages:
    """Images in memory, and what they are."""

    halves: tuple[ImagePool, ImagePool]
    splits: Splits
    classes: int

    @property
    def all(self) -> ImagePool:
        """Both halves together, for training what was found."""
        first, second = self.halves
        return ImagePool((*first.batches, *second.batches), torch.cat([first.targets, second.targets]))

    @property
    def per_half(self) -> int:
        """Images in the smaller half."""
        return min(map(len, self.halves))


def make_preprocess(
    size: Size | None, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> Preprocess:
    """Returns what becomes of images; what is left out is as for the images that come along.

    Raises:
        ConfigError: means and deviations do not fit each other.
    """
    mean, std = mean or FASHION_MNIST.mean, std or FASHION_MNIST.std
    if len(mean) != len(std) or min(std) <= 0:
        raise ConfigError(
            f"{len(mean)} means and {len(std)} stds; give one of each per channel, stds above 0"
        )
    size = size or FASHION_MNIST.size
    resize = None if size == FASHION_MNIST.size else min(size)
    return Preprocess(size=size, resize=resize, mean=mean, std=std)


def read_images(
    data: str, preprocess: Preprocess, *, images: int | None, report_images: int | None, seed: int
) -> SearchImages:
    """Reads images with labels and cuts the training part into halves.

    Raises:
        DataError: there are none, or too few, or they have no labels.
        ConfigError: fewer than two are asked for.
    """
    source = open_source(data, preprocess)
    wanted = _count(source, images)
    drawn = make_splits(
        source, calibration=wanted // 2, selection=wanted - wanted // 2, report=report_images, seed=seed
    )
    classes = _classes(drawn.calibration.images)
    for split in (drawn.calibration, drawn.selection, drawn.report):
        if split is not None:
            require_labels(split)
            check_labels(split, classes)
    return SearchImages((_pool(drawn.calibration), _pool(drawn.selection)), drawn, classes)


def _count(source: Source, asked: int | None) -> int:
    used, reported = image_sets(source, None)
    spare = len(used) // 5 if used is reported else 0
    count = min(USUAL_IMAGES, len(used) - spare) if asked is None else asked
    if count < 2:
        raise ConfigError(f"{count} images to search on: both halves need one; there are {len(used)} in all")
    return count


def _classes(images: ImageSet) -> int:
    labels = images.labels()
    if labels is None:
        raise DataError(f"{images.name}: has no labels; a search needs them, as class folders or labels.txt")
    found = int(labels.max()) + 1 if images.classes is None else images.classes
    if found < 2:
        raise DataError(f"{images.name}: has {found} class; a search needs two or more")
    return found


def _pool(split: Split) -> ImagePool:
    images, labels = split.tensors()
    assert labels is not None  # checked before
    return ImagePool((images,), labels)
