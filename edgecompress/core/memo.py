"""What a long command has already found out, kept on disk: killed at any moment, it goes on from there.

A command that is started again does everything in the same order. Whatever was finished before is read and
not done again, so the result is the same as without the interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from edgecompress.core.store import read_record, replacing, write_record
from edgecompress.errors import ArtefactError

R = TypeVar("R", bound=BaseModel)

NUMBERS = "numbers.jsonl"
LONGEST = 120
"""Characters of a file's name; file systems allow 255, and temporary names are longer."""


class Memo:
    """Finished steps by name, in a directory; without one nothing is kept."""

    def __init__(self, directory: Path | None = None) -> None:
        """Opens a directory, which may hold what an earlier process finished."""
        self.directory = directory
        self._numbers = dict(_read_numbers(directory / NUMBERS)) if directory is not None else {}

    def number(self, name: str, compute: Callable[[], float]) -> float:
        """Returns a number, computed at most once."""
        if self.directory is None:
            return compute()
        if name not in self._numbers:
            self._numbers[name] = float(compute())
            _append(self.directory / NUMBERS, json.dumps([name, self._numbers[name]]))
        return self._numbers[name]

    def record(self, name: str, kind: type[R], compute: Callable[[], R]) -> R:
        """Returns a record, computed at most once."""
        path = self.path(f"{name}.json")
        if path is None:
            return compute()
        if not path.is_file():
            write_record(path, compute(), indent=None)
        return read_record(path, kind)

    def file(self, name: str, write: Callable[[Path], None]) -> Path | None:
        """Returns a file that is written at most once, whole; None where nothing is kept."""
        path = self.path(name)
        if path is not None and not path.is_file():
            with replacing(path) as temporary:
                write(temporary)
        return path

    def path(self, name: str) -> Path | None:
        """Returns where a step may keep what it needs to go on; None where nothing is kept."""
        return None if self.directory is None else self.directory / file_name(name)

    def alone(self) -> Memo:
        """Returns the memo for what one process does while others wait for nothing."""
        return self


def file_name(name: str) -> str:
    """Returns the name of a step as a file may have it: names of layers may be long, with any character."""
    plain = re.sub(r"[^\w .,+()=-]", "_", name, flags=re.ASCII)
    if plain == name and len(name) <= LONGEST and not name.startswith("."):
        return name
    stem, dot, suffix = plain.lstrip(".").rpartition(".")
    told = hashlib.sha256(name.encode()).hexdigest()[:16]
    if not dot or len(suffix) > len("safetensors"):
        return f"{plain.lstrip('.')[:LONGEST]} {told}"
    return f"{stem[:LONGEST]} {told}.{suffix}"


def _read_numbers(path: Path) -> Iterator[tuple[str, float]]:
    if not path.is_file():
        return
    for line in filter(None, path.read_text(encoding="utf-8", errors="replace").splitlines()):
        try:
            name, value = json.loads(line)
            found = str(name), float(value)
        except (ValueError, TypeError, OverflowError, RecursionError):  # killed in the middle of it
            continue
        yield found


def _append(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(f"\n{line}")  # a line that was cut off before ends here
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise ArtefactError(f"{path}: could not be written: {error.strerror or error}") from None


NO_MEMO = Memo()
"""Keeps nothing."""
