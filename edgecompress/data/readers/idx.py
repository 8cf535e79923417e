"""Reads idx files, the format of MNIST and Fashion-MNIST: a magic number, the shape, the bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgecompress.core.types import Preprocess
from edgecompress.data.image_sets import ArraySet
from edgecompress.data.sources import Reader, Source, divided
from edgecompress.errors import DataError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Returns the array in an idx file of unsigned bytes; a name ending in `.gz` is unpacked.

    Raises:
        DataError: the file is missing, damaged, cut off or holds another type of number.
    """
    raw = _read_bytes(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path}: not an idx file of unsigned bytes; is it damaged?")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{path}: the idx header is cut off; fetch the file again")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    body = np.frombuffer(raw, np.uint8, offset=start)
    if body.size != (expected := int(np.prod(shape, dtype=np.int64))):
        raise DataError(f"{path}: {body.size} bytes where the header promises {expected}; fetch it again")
    return body.reshape(shape)


def _read_bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: could not be read: {error}") from None


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
