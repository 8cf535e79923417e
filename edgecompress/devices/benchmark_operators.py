"""The table of operators `benchmark_model` prints with profiling, with tabs or as CSV.

Columns come and go between builds, so a row is read by the header above it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from edgecompress.core.measurement import OpTime

NUMBER = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
TITLE = re.compile(r"=+ (.+) =+$")
DELEGATE = re.compile(r"TfLite\w*Delegate")


def parse_operators(lines: Iterable[str]) -> tuple[OpTime, ...]:
    """Returns the operators of one inference in their order; empty without such a table.

    `mean_ms` is per inference, all calls together, so that the sum is the time of an inference.
    """
    rows = [one for one in map(_operator, _rows(lines)) if one is not None]
    if any(one.name.startswith("Delegate/") for one in rows):  # they are what the delegate's node consists of
        rows = [one for one in rows if not DELEGATE.fullmatch(one.kind)]
    return tuple(rows)


def _rows(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yields the rows of the tables `Run Order`, save that of the initialisation, by column."""
    initialising, wanted, columns = False, False, None
    for line in lines:
        if "Profiling Info for" in line:
            initialising = "Initialization" in line
        elif title := TITLE.match(line.strip()):
            wanted, columns = title[1] == "Run Order" and not initialising, None
        elif wanted and columns is None:
            columns = _columns(line)
        elif wanted and columns and line.strip():
            yield dict(zip(columns, _cells(line, columns), strict=False))
        else:
            wanted = False


def _columns(header: str) -> list[str]:
    """Returns the names in small letters: `[avg ms]` and `avg_ms` are one column."""
    names = header.split("\t") if "\t" in header else header.split(",")
    return [name.strip().strip("[]").replace("_", " ").lower() for name in names if name.strip()]


def _cells(row: str, columns: Sequence[str]) -> list[str]:
    """Splits a row; in CSV the first and the last column may themselves contain commas."""
    if "\t" in row:
        return [cell.strip() for cell in row.strip().split("\t")]
    between = rf"((?:,\s*{NUMBER}%?){{{len(columns) - 2}}}),\s*"
    match = re.fullmatch(rf"\s*(.*?){between}(.*?)\s*", row)
    if match is None:
        return []
    return [match[1], *(cell.strip() for cell in match[2].split(",")[1:]), match[3]]


def _operator(row: Mapping[str, str]) -> OpTime | None:
    """Returns None for a row that is no part of an inference, as `AllocateTensors` called 0 times."""
    kind, name = row.get("node type", ""), row.get("name", "")
    per_call_ms, calls = _number(row.get("avg ms")), _number(row.get("times called"))
    if not kind or per_call_ms is None or calls is None or calls < 1:
        return None
    mean_ms = max(per_call_ms, 0.0) * calls
    return OpTime(
        name=name or kind, kind=kind, mean_ms=mean_ms, calls=round(calls), delegated=_delegated(kind, name)
    )


def _number(text: str | None) -> float | None:
    found = float(text) if text is not None and re.fullmatch(NUMBER, text) else math.inf
    return found if math.isfinite(found) else None


def _delegated(kind: str, name: str) -> bool | None:
    if "::" in kind:  # the runtime's own work, as `LiteRT::Run[buffer registration]`
        return None
    return name.startswith("Delegate/") or DELEGATE.fullmatch(kind) is not None
