"""What a fuzzed format is, and the law all of them keep."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from edgecompress.errors import EdgeCompressError

LONGEST_MESSAGE = 20_000
"""Characters of an error: a line may quote what was found, and a value may be long, but not a whole file."""


def nothing(folder: Path) -> None:
    """Needs no other files."""


@dataclass(frozen=True)
class Format:
    """A kind of file, how to damage it, and what reads it."""

    name: str
    file: str
    """Name of the damaged file in its folder."""
    damaged: Callable[[], SearchStrategy[bytes]]
    read: Callable[[Path], object]
    """Reads a folder with the damaged file in it."""
    surroundings: Callable[[Path], None] = nothing
    """Writes what else the folder must hold."""
    weight: float = 1.0
    """Its share of a long run: readers that take milliseconds get less."""
    quick: int = 15
    """How many inputs in the test suite."""


def outcome(kind: Format, folder: Path, content: bytes) -> str:
    """Returns `read` or `refused`; whatever else a reader does with damaged content is a bug of ours."""
    (folder / kind.file).write_bytes(content)
    try:
        with warnings.catch_warnings():  # as the command line has it
            warnings.simplefilter("ignore")
            kind.read(folder)
    except EdgeCompressError as error:
        assert str(error).strip(), "an error without a message"
        assert len(str(error)) < LONGEST_MESSAGE, f"a message of {len(str(error))} characters"
        return "refused"
    return "read"


@contextlib.contextmanager
def folder_of(kind: Format, base: Path) -> Iterator[Path]:
    """Yields a folder in which all but the damaged file is in place."""
    folder = base / kind.name
    folder.mkdir()
    kind.surroundings(folder)
    (folder / kind.file).parent.mkdir(parents=True, exist_ok=True)
    yield folder
