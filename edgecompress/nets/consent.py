"""Whether code that a plan names may be run: plans come from anywhere, and code may do harm."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path

from edgecompress.core.caches import cache_directory
from edgecompress.errors import ArtefactError
from edgecompress.nets.user_code import FILE_SOURCE

TRUST_CODE = "EDGECOMPRESS_TRUST_CODE"
"""Set to 1 in the environment: plans may run whatever code they name."""


def check_consent(source: str, *, artefact: Path | None, start: Path = Path()) -> None:
    """Does nothing where the network a plan names may be built.

    Files are run where the user has named them as a model before, or where they lie below the current folder
    and did not come along in the artefact itself; modules that are installed are imported unless they are
    Python's own. All else needs `TRUST_CODE`. Relative paths begin in `start`.

    Raises:
        ArtefactError: the plan names other code.
    """
    if os.environ.get(TRUST_CODE) == "1":
        return
    if source.startswith("python:"):
        top = source.removeprefix("python:").partition(":")[0].partition(".")[0]
        fault = "a module of Python itself" if top in sys.stdlib_module_names else None
    else:
        match = FILE_SOURCE.fullmatch(source)
        fault = None if match is None else _why_strange(start / match["path"], artefact)
    if fault is not None:
        raise ArtefactError(
            f"{artefact or 'the plan'}: is built by code, {source}, and that is {fault}; if you trust it, "
            f"set {TRUST_CODE}=1 or pass trust_code=True"
        )


def remember_code(source: str) -> None:
    """Keeps in mind that the user has named a file as a model; other sources need no such mark."""
    match = FILE_SOURCE.fullmatch(source)
    if match is None or os.environ.get(TRUST_CODE) == "1":  # with it nobody asks whose file it is
        return
    mark = _mark(Path(match["path"]).resolve())
    with contextlib.suppress(OSError):  # a home that cannot be written: then plans ask
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _why_strange(path: Path, artefact: Path | None) -> str | None:
    try:
        file = path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, a zero byte
        return "at a path no file can have"
    if _mark(file).exists():
        return None
    if artefact is not None and file.is_relative_to(artefact.resolve()):
        return "a file that came along with it"
    return None if file.is_relative_to(Path.cwd().resolve()) else "a file outside of the current folder"


def _mark(file: Path) -> Path:
    return cache_directory() / "own-code" / hashlib.sha256(str(file).encode()).hexdigest()[:32]
