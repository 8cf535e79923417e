"""A place for what is needed only while a command runs, of which a killed command leaves nothing for long."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "edgecompress.scratch."
TRIES = 5


@contextlib.contextmanager
def own_scratch() -> Iterator[None]:
    """Lets everything temporary of this process be made in one directory, which is removed at the end.

    The directory is locked as long as the process lives, so that the next one can tell what a killed one has
    left, and removes it. Where no such directory can be made, things are as they were.
    """
    made = _make()
    if made is None:
        yield
        return
    (path, handle), before = made, tempfile.tempdir
    tempfile.tempdir = str(path)
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _make() -> tuple[Path, int] | None:
    try:
        _sweep(Path(tempfile.gettempdir()))
        for _ in range(TRIES):  # another process that sweeps may be faster than our lock
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
            if (handle := _lock(path)) is not None:
                return path, handle
            shutil.rmtree(path, ignore_errors=True)  # some network disks lock nothing
    except OSError:  # no room, or nowhere to write: whoever needs it will say so
        pass
    return None


def _sweep(base: Path) -> None:
    for path in base.glob(f"{PREFIX}*"):
        if (handle := _lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)


def _lock(path: Path) -> int | None:
    """Returns the lock of a directory; None where another process has it, or has just removed it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, or of another user
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None
