"""Images in a NumPy archive: `x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgecompress.core.types import Preprocess
from edgecompress.core.unpacking import check_archive
from edgecompress.data.image_sets import ArraySet
from edgecompress.data.sources import Reader, Source, divided
from edgecompress.errors import DataError

Arrays = dict[str, npt.NDArray[np.generic]]


def open_npz(path: str, preprocess: Preprocess, *, name: str | None = None) -> Source:
    """Opens an archive; labels may be missing.

    Raises:
        DataError: the file is missing or damaged, or holds no images.
    """
    name = name or path
    arrays = _load(path)
    if "x" in arrays:
        return Source(name, pool=ArraySet(name, arrays["x"], arrays.get("y"), preprocess))
    parts = [_part(name, arrays, part, preprocess) for part in ("train", "test")]
    if parts == [None, None]:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(
            f"{name}: holds {found}; expected are x and y, or x_train, y_train, x_test and y_test"
        )
    return divided(name, *parts)


def _part(name: str, arrays: Arrays, part: str, preprocess: Preprocess) -> ArraySet | None:
    if f"x_{part}" not in arrays:
        return None
    return ArraySet(f"{name} ({part})", arrays[f"x_{part}"], arrays.get(f"y_{part}"), preprocess)


def _load(path: str) -> Arrays:
    try:
        with Path(path).open("rb") as stream:  # NumPy leaves it open when the archive is damaged
            if stream.read(len(_BARE)) == _BARE:
                raise DataError(f"{path}: one bare array; save images and labels with numpy.savez")
        check_archive(Path(path))
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            found = {key: archive[key] for key in archive.files}
    except _DAMAGE as error:
        said = str(error).partition("\n")[0]
        raise DataError(f"{path}: not a readable .npz of plain arrays: {said}") from None
    return {key: value for key, value in found.items() if isinstance(value, np.ndarray)}


_BARE = b"\x93NUMPY"
"""How a file with one array begins."""
_DAMAGE = (
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy ends in where a byte is not what it should be."""


READER = Reader(
    "npz",
    "a .npz file with x and y, or x_train, y_train, x_test, y_test",
    lambda s: s.endswith(".npz"),
    open_npz,
)
