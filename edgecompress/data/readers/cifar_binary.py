"""CIFAR-10 in its binary form: records of one label byte and 3,072 bytes in the order C, H, W."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgecompress.core.types import Preprocess
from edgecompress.data.image_sets import ArraySet
from edgecompress.data.pixels import Pixels
from edgecompress.data.sources import Reader, Source, divided
from edgecompress.errors import DataError

_RECORD_BYTES = 1 + 3 * 32 * 32


def open_cifar_binary(path: str, preprocess: Preprocess) -> Source:
    """Opens a directory with `data_batch_*.bin`, `test_batch.bin` or both.

    Raises:
        DataError: there are no such files or one is cut off.
    """
    directory = Path(path)
    batches = sorted(directory.glob("data_batch_*.bin"))
    tests = sorted(directory.glob("test_batch.bin"))
    if not batches and not tests:
        raise DataError(f"{path}: neither data_batch_1.bin nor test_batch.bin is there")
    train = _part(f"{path} (train)", batches, preprocess)
    return divided(path, train, _part(f"{path} (test)", tests, preprocess))


def _part(name: str, batches: list[Path], preprocess: Preprocess) -> ArraySet | None:
    if not batches:
        return None
    records = np.concatenate([_read_records(batch) for batch in batches])
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return ArraySet(name, pixels, records[:, 0], preprocess)


def _read_records(path: Path) -> Pixels:
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path}: could not be read: {error}") from None
    if raw.size == 0 or raw.size % _RECORD_BYTES:
        raise DataError(f"{path}: {raw.size} bytes are not whole records of {_RECORD_BYTES}; fetch it again")
    return raw.reshape(-1, _RECORD_BYTES)


def _matches(spec: str) -> bool:
    return any((Path(spec) / name).is_file() for name in ("data_batch_1.bin", "test_batch.bin"))


READER = Reader(
    "cifar-binary", "a directory with CIFAR-10 as data_batch_1.bin ...", _matches, open_cifar_binary
)
