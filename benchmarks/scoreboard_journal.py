"""The lines of the scoreboard: what is done is not done again, and later lines replace earlier ones."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]
KEY = ("kind", "model", "runtime", "method", "point", "minutes")
"""What tells rows apart. Kinds are `network`, `measured` and `recovered`."""


def key_of(row: Row) -> tuple[Any, ...]:
    """Returns what a row is about; what is missing is None."""
    return tuple(row.get(name) for name in KEY)


def read_rows(files: Iterable[Path]) -> list[Row]:
    """Returns the rows of files in their order, the last of each key; a line that was cut off is left out."""
    found: dict[tuple[Any, ...], Row] = {}
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        for line in filter(None, lines):
            try:
                row = json.loads(line)
            except ValueError:  # killed in the middle of it
                continue
            found[key_of(row)] = row
    return list(found.values())


class Journal:
    """A file of rows that grows."""

    def __init__(self, file: Path) -> None:
        """Opens a file, which may hold what an earlier process finished."""
        self.file = file
        self.rows = {key_of(row): row for row in read_rows([file])}

    def find(self, **about: Any) -> Row | None:  # noqa: ANN401  values of JSON
        """Returns the row with this key, if it is there."""
        return self.rows.get(key_of(about))

    def every(self, **about: Any) -> list[Row]:  # noqa: ANN401
        """Returns the rows of which all this is true."""
        return [row for row in self.rows.values() if about.items() <= row.items()]

    def add(self, row: Row) -> None:
        """Writes a row, with machine, date and load."""
        row = row | circumstances()
        self.rows[key_of(row)] = row
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(f"\n{json.dumps(row)}")  # a line that was cut off before ends here
            stream.flush()
            os.fsync(stream.fileno())


def circumstances() -> Row:
    """Returns where and when, and how busy the machine is."""
    return {
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": round(os.getloadavg()[0], 1),
    }


def command(options: Sequence[str]) -> str:
    """Returns what to type to get a row again."""
    return " ".join(["python benchmarks/scoreboard.py", *options])
