"""What was measured so far, on disk: one line per block or network, written as soon as it is known.

A build that is killed goes on where it was, and nothing is measured twice. The first line says under which
conditions; a journal of others is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import Field, FiniteFloat, ValidationError

from edgecompress.core.latency_table import Heading, TableEntry
from edgecompress.core.statistics import check_alike
from edgecompress.core.store import sweep_temporaries
from edgecompress.core.types import Record
from edgecompress.errors import ArtefactError, ConfigError

R = TypeVar("R", bound=Record)


class NetworkEntry(Record):
    """A whole network that was measured under a plan."""

    network: str
    input_shape: tuple[int, int, int]
    plan: str
    """How it was drawn, and a hash of its blocks: drawn from another space it is another plan."""
    measured_ms: FiniteFloat = Field(gt=0)


NetworkKey = tuple[str, tuple[int, int, int], str]
"""Name, input and plan of a network that was measured."""


class Journal:
    """An open journal; append only."""

    def __init__(self, path: Path, heading: Heading) -> None:
        """Opens a journal, or starts one; `heading` is then the one it was begun with.

        Raises:
            ConfigError: it was begun under other conditions.
            ArtefactError: it is damaged, or cannot be written.
        """
        self._path = path
        self.heading = heading
        self.entries: dict[str, TableEntry] = {}
        self.networks: dict[NetworkKey, NetworkEntry] = {}
        _cut_torn_line(path)
        begun = read_heading(path)
        if begun is None:
            self._write(heading)
            return
        check_heading(path, begun, heading)
        self.heading = begun
        self._read()

    def add(self, entry: TableEntry | NetworkEntry) -> None:
        """Writes an entry; when this returns it is on the disk.

        Raises:
            ArtefactError: the disk is full or gone.
        """
        self._keep(entry)
        self._write(entry)

    def remove(self) -> None:
        """Deletes the journal, once a table holds all of it."""
        self._path.unlink(missing_ok=True)

    def _keep(self, entry: TableEntry | NetworkEntry) -> None:
        if isinstance(entry, TableEntry):
            self.entries[entry.key] = entry
        else:
            self.networks[entry.network, entry.input_shape, entry.plan] = entry

    def _read(self) -> None:
        for line in _whole_lines(self._path).splitlines()[1:]:
            entry = _parsed(TableEntry, line) or _parsed(NetworkEntry, line)
            if entry is None:
                raise ArtefactError(f"{self._path}: damaged; move it away and build again")
            self._keep(entry)

    def _write(self, record: Record) -> None:
        with _blaming(self._path), self._path.open("ab") as stream:
            stream.write(record.model_dump_json().encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


@contextlib.contextmanager
def locked(table: Path) -> Iterator[Path]:
    """Yields the path of a table's journal, beside it, while nobody else writes that table.

    A program that is killed lets go of the lock by itself.

    Raises:
        ConfigError: another program writes it.
        ArtefactError: the folder cannot be written.
    """
    path = journal_path(table)
    with _blaming(table):
        stream = _locked_stream(path, table)
    with stream:
        sweep_temporaries(table)
        try:
            yield path
        finally:
            if path.is_file() and not path.stat().st_size:  # nothing was begun
                path.unlink()


def journal_path(table: Path) -> Path:
    """Returns where the journal of a table is."""
    return table.with_name(f".{table.name}.journal")


def _locked_stream(path: Path, table: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        stream = path.open("ab")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_file() and os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                return stream
        except BlockingIOError:
            stream.close()
            raise ConfigError(
                f"{table}: another build is writing it; wait until that ends, or use another file"
            ) from None
        stream.close()  # the other has ended in between, and removed its journal


@contextlib.contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Says of an error of the file system which file could not be written."""
    try:
        yield
    except OSError as error:
        raise ArtefactError(
            f"{path}: could not be written: {error.strerror or error}; use another file"
        ) from None


def read_heading(path: Path) -> Heading | None:
    """Returns under which conditions a journal was begun; None: there is none, or not even its first line.

    Raises:
        ArtefactError: the file is no journal.
    """
    lines = _whole_lines(path).splitlines()
    if not lines:
        return None
    found = _parsed(Heading, lines[0])
    if found is None:
        raise ArtefactError(f"{path}: not a journal of latencies; move it away and build again")
    return found


def read_entries(path: Path) -> list[TableEntry]:
    """Returns the blocks in a journal, to which somebody may be writing at the moment."""
    entries = (_parsed(TableEntry, line) for line in _whole_lines(path).splitlines())
    return [entry for entry in entries if entry is not None]


def check_heading(path: Path, found: Heading, wanted: Heading) -> None:
    """Does nothing where what is in `path` and what is wanted may stand in one table.

    Raises:
        ConfigError: they may not.
    """
    for name in ("device", "format", "dtype"):
        was, now = getattr(found, name), getattr(wanted, name)
        if was != now:
            raise ConfigError(f"{path}: is of {name} {was!r}, not {now!r}; use another file")
    try:
        check_alike(found.conditions, wanted.conditions)
    except ConfigError as error:
        raise ConfigError(f"{path}: is of other conditions: {error}") from None


def _whole_lines(path: Path) -> bytes:
    """Returns the lines that were written to their end; nothing where there is no journal."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read: {error.strerror or error}") from None
    return content[: content.rfind(b"\n") + 1]


def _cut_torn_line(path: Path) -> None:
    """Removes a last line in the middle of which its writer was killed."""
    whole = len(_whole_lines(path))
    with _blaming(path):
        if path.is_file() and path.stat().st_size > whole:
            os.truncate(path, whole)


def _parsed(kind: type[R], line: bytes) -> R | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None
