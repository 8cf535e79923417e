"""How much a packed file may unpack to: a few kilobytes must not be able to fill the memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

ALWAYS_BYTES = 256 * 2**20
"""What any file may unpack to."""
MOST_TIMES = 100
"""Times its own size that a larger one may: photographs pack to a half, empty pictures to a thousandth."""


def check_unpacked(path: Path, unpacked_bytes: int) -> None:
    """Does nothing where a file may unpack to so much.

    Raises:
        ValueError: it may not.
    """
    if unpacked_bytes > max(ALWAYS_BYTES, MOST_TIMES * path.stat().st_size):
        raise ValueError(f"unpacks to {unpacked_bytes / 1e6:,.0f} MB, over {MOST_TIMES} times its size")


def check_archive(path: Path) -> None:
    """Does the same for all files of a zip archive together, before any is unpacked.

    Raises:
        ValueError: they unpack to too much.
        BadZipFile, OSError: it is no archive or cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        check_unpacked(path, sum(one.file_size for one in archive.infolist()))
