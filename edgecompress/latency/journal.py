"""What was measured so far, on disk: one line per block or network, written as soon as it is known.

A build that is killed goes on where it was, and nothing is measured twice. The first line says under which
conditions; a journal of others is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import FiniteFloat, ValidationError

from edgecompress.core.latency_table import TableDtype, TableEntry, TableFormat
from edgecompress.core.measurement import Conditions
from edgecompress.core.statistics import check_alike
from edgecompress.core.types import Record
from edgecompress.errors import ArtefactError, ConfigError

R = TypeVar("R", bound=Record)


class Heading(Record):
    """The first line of a journal."""

    device: str
    conditions: Conditions
    format: TableFormat
    dtype: TableDtype
    reference_ms: FiniteFloat | None
    """Of the reference block when the table was begun: all later sittings are scaled to it."""
    overhead_ms: FiniteFloat
    """Of a file with next to nothing in it."""


class NetworkEntry(Record):
    """A whole network that was measured under a plan."""

    network: str
    input_shape: tuple[int, int, int]
    plan: str
    measured_ms: FiniteFloat


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
        self.networks: dict[tuple[str, str], NetworkEntry] = {}
        begun = read_heading(path)
        if begun is None:
            self._begin(heading)
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
            self.networks[entry.network, entry.plan] = entry

    def _begin(self, heading: Heading) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(b"")
        except OSError as error:
            raise ArtefactError(f"{self._path}: could not be written: {error.strerror or error}") from None
        self._write(heading)

    def _read(self) -> None:
        for line in list(_whole_lines(self._path))[1:]:
            entry = _parsed(TableEntry, line) or _parsed(NetworkEntry, line)
            if entry is None:
                raise ArtefactError(f"{self._path}: damaged; move it away and build again")
            self._keep(entry)

    def _write(self, record: Record) -> None:
        try:
            with self._path.open("ab") as stream:
                stream.write(record.model_dump_json().encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ArtefactError(f"{self._path}: could not be written: {error.strerror or error}") from None


def read_heading(path: Path) -> Heading | None:
    """Returns under which conditions a journal was begun; None: there is none, or not even its first line.

    Raises:
        ArtefactError: the file is no journal.
    """
    lines = list(_whole_lines(path)) if path.is_file() else []
    if not lines:
        return None
    found = _parsed(Heading, lines[0])
    if found is None:
        raise ArtefactError(f"{path}: not a journal of latencies; move it away and build again")
    return found


def check_heading(path: Path, found: Heading, wanted: Heading) -> None:
    """Does nothing where what is in `path` and what is wanted may stand in one table.

    Raises:
        ConfigError: they may not.
    """
    for name in ("device", "format", "dtype"):
        was, now = getattr(found, name), getattr(wanted, name)
        if was != now:
            raise ConfigError(f"{path}: was begun with {name} {was!r}, not {now!r}; use another file")
    try:
        check_alike(found.conditions, wanted.conditions)
    except ConfigError as error:
        raise ConfigError(f"{path}: was begun under other conditions: {error}") from None


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines that were written to their end; cuts off one that was not."""
    try:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # killed in the middle of a line
            with path.open("r+b") as stream:
                stream.truncate(whole)
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read: {error.strerror or error}") from None
    yield from content[:whole].splitlines()


def _parsed(kind: type[R], line: bytes) -> R | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None
