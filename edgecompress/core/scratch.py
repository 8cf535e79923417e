"""A place for what is needed only while a command runs, of which a killed command leaves nothing for long."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgecompress.core.store import held_directory, remove_abandoned

PREFIX = "edgecompress.scratch."


@contextlib.contextmanager
def own_scratch() -> Iterator[None]:
    """Lets everything temporary of this process be made in one directory, which is removed at the end.

    What a killed process has left is removed by the next one. Where no such directory can be made, things
    are as they were.
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
        base = Path(tempfile.gettempdir())
        remove_abandoned(base.glob(f"{PREFIX}*"))
        return held_directory(base, PREFIX)
    except OSError:  # no room, or nowhere to write: whoever needs it will say so
        return None
