"""What was measured so far, on disk: one line per block, written as soon as it is known.

A build that is killed goes on where it was, and nothing is measured twice. The first line says under which
conditions; a journal of others is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from edgecompress.core.latency_table import TableEntry
from edgecompress.core.measurement import Conditions
from edgecompress.core.statistics import check_alike
from edgecompress.core.types import Record
from edgecompress.errors import ArtefactError, ConfigError
from edgecompress.latency.keys import block_key

R = TypeVar("R", bound=Record)


class Heading(Record):
    """The first line of a journal."""

    conditions: Conditions
    format: str
    dtype: str


class Journal:
    """An open journal; append only."""

    def __init__(self, path: Path, heading: Heading) -> None:
        """Opens a journal, or starts one.

        Raises:
            ConfigError: it was begun under other conditions.
            ArtefactError: it is damaged, or cannot be written.
        """
        self._path = path
        self.entries: dict[str, TableEntry] = {}
        if path.is_file() and path.stat().st_size:
            self._read(heading)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(heading)

    def add(self, entry: TableEntry) -> None:
        """Writes an entry; when this returns it is on the disk.

        Raises:
            ArtefactError: the disk is full or gone.
        """
        self.entries[block_key(entry.block, entry.in_size)] = entry
        self._write(entry)

    def _read(self, heading: Heading) -> None:
        lines = list(self._whole_lines())
        found = _parsed(Heading, lines[0]) if lines else None
        if found is None:
            raise ArtefactError(f"{self._path}: not a journal of latencies; move it away and build again")
        self._check(found, heading)
        for line in lines[1:]:
            entry = _parsed(TableEntry, line)
            if entry is None:
                raise ArtefactError(f"{self._path}: damaged; move it away and build again")
            self.entries[block_key(entry.block, entry.in_size)] = entry

    def _whole_lines(self) -> Iterator[bytes]:
        """Yields the lines that were written to their end; cuts off one that was not."""
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # killed in the middle of a line
            with self._path.open("r+b") as stream:
                stream.truncate(whole)
        yield from content[:whole].splitlines()

    def _check(self, found: Heading, wanted: Heading) -> None:
        for name in ("format", "dtype"):
            was, now = getattr(found, name), getattr(wanted, name)
            if was != now:
                raise ConfigError(
                    f"{self._path}: was begun with {name} {was!r}, not {now!r}; use another file"
                )
        try:
            check_alike(found.conditions, wanted.conditions)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: was begun under other conditions: {error}") from None

    def _write(self, record: Record) -> None:
        try:
            with self._path.open("ab") as stream:
                stream.write(record.model_dump_json().encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise ArtefactError(f"{self._path}: could not be written: {error.strerror or error}") from None


def _parsed(kind: type[R], line: bytes) -> R | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None
