"""Reads idx files, the format of MNIST and Fashion-MNIST: a magic number, the shape, the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgecompress.core.types import Preprocess
from edgecompress.core.unpacking import check_unpacked
from edgecompress.data.image_sets import ArraySet
from edgecompress.data.sources import Reader, Source, divided
from edgecompress.errors import DataError

_UNSIGNED_BYTE = 0x08
_MOST_AXES = 8


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Returns the array in an idx file of unsigned bytes; a name ending in `.gz` is unpacked.

    Raises:
        DataError: the file is missing, damaged, cut off or holds another type of number.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return _read_array(path, stream)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: could not be read: {error}") from None


def _read_array(path: Path, stream: gzip.GzipFile | BufferedReader) -> npt.NDArray[np.uint8]:
    """Reads no more than the header promises, however much may follow."""
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path}: not an idx file of unsigned bytes; is it damaged?")
    head = stream.read(4 * start[3])
    if len(head) < 4 * start[3] or start[3] > _MOST_AXES:
        raise DataError(f"{path}: the idx header is cut off or damaged; fetch the file again")
    shape = struct.unpack(f">{start[3]}I", head)
    check_unpacked(path, expected := math.prod(shape))
    body = np.frombuffer(stream.read(expected + 1), np.uint8)
    if body.size != expected:
        least = "at least " if body.size > expected else ""
        raise DataError(
            f"{path}: {least}{body.size} bytes where the header promises {expected}; fetch it again"
        )
    return body.reshape(shape)


def open_idx(path: str, preprocess: Preprocess) -> Source:
    """Opens a directory with the training part, the test part (`t10k`) or both.

    Raises:
        DataError: a file is missing or damaged, or the counts of images and labels differ.
    """
    parts = [_part(Path(path), part, preprocess) for part in ("train", "t10k")]
    if parts == [None, None]:
        raise DataError(f"{path}: no train-images-idx3-ubyte or t10k-images-idx3-ubyte, packed or not")
    return divided(path, *parts)


def _part(directory: Path, part: str, preprocess: Preprocess) -> ArraySet | None:
    images = _find(directory, f"{part}-images-idx3-ubyte")
    labels = _find(directory, f"{part}-labels-idx1-ubyte")
    if images is None:
        return None
    if labels is None:
        raise DataError(f"{images}: its labels, {part}-labels-idx1-ubyte, are not beside it")
    return ArraySet(f"{directory} ({part})", read_idx(images), read_idx(labels), preprocess)


def _find(directory: Path, name: str) -> Path | None:
    return next((file for file in (directory / name, directory / f"{name}.gz") if file.is_file()), None)


def _matches(spec: str) -> bool:
    return any(_find(Path(spec), f"{part}-images-idx3-ubyte") is not None for part in ("train", "t10k"))


READER = Reader("idx", "a directory with MNIST-like idx files, packed with gzip or not", _matches, open_idx)
