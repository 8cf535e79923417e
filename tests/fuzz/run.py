"""Reads damaged files of every format, very many of them, and counts what came of it.

    python tests/fuzz/run.py --inputs 100000 --json

Every format runs in a process of its own, which may take so much memory and no more: a file that makes a
native library crash or ask for everything is found as well. Exits with 1 where one input was neither read nor
refused in one line.
"""

# ruff: noqa: T201  what it prints is its result

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch, which cannot be forked with threads

from fuzz.contract import Format  # noqa: E402  needs the path above
from fuzz.formats import FORMATS, LAST, count_outcomes  # noqa: E402

MEMORY_BYTES = 6 * 2**30
COUNTS = "counts.json"

Row = dict[str, object]


def main() -> int:
    """Fuzzes all formats asked for and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="in all")
    parser.add_argument("--only", nargs="*", help="formats; all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    chosen = [one for one in FORMATS if not asked.only or one.name in asked.only]
    total = sum(one.weight for one in chosen)
    rows = [_row(one, math.ceil(asked.inputs * one.weight / total), asked.seed) for one in chosen]
    _print(rows, as_json=asked.json)
    return int(any(row["failure"] for row in rows))


def _row(kind: Format, inputs: int, seed: int) -> Row:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as base:
        child = multiprocessing.get_context("fork").Process(target=_fuzz, args=(kind, base, inputs, seed))
        child.start()
        child.join()
        row = {"format": kind.name, "inputs": 0, "read": 0, "refused": 0, "failure": None}
        row |= _told(Path(base), kind, child.exitcode)
    row["seconds"] = round(time.monotonic() - start, 1)
    print(f"{row['inputs']:>7} {kind.name}{' FAILED' if row['failure'] else ''}", file=sys.stderr, flush=True)
    return row


def _fuzz(kind: Format, base: str, inputs: int, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    found = count_outcomes(kind, Path(base), inputs, seed)
    told = {"inputs": found.read + found.refused, "read": found.read, "refused": found.refused}
    failure = "\n".join(f"{place}\n{shown}" for place, shown in found.crashes.items()) or None
    Path(base, COUNTS).write_text(json.dumps(told | {"failure": failure}))


def _told(base: Path, kind: Format, code: int | None) -> Row:
    if code == 0:
        return dict(json.loads((base / COUNTS).read_text()))
    last = base / kind.name / LAST
    shown = last.read_bytes()[:2000] if last.is_file() else b""
    return {"failure": f"the process ended with {code} after the input {shown!r}"}


def _print(rows: list[Row], *, as_json: bool) -> None:
    totals = {name: sum(int(str(row[name])) for row in rows) for name in ("inputs", "read", "refused")}
    if as_json:
        print(json.dumps({"formats": rows, **totals}, indent=2))
        return
    print(f"{'format':34}{'inputs':>8}{'read':>8}{'refused':>8}{'seconds':>9}")
    for row in [*rows, {"format": "all", **totals, "seconds": "", "failure": None}]:
        print(f"{row['format']:34}{row['inputs']:>8}{row['read']:>8}{row['refused']:>8}{row['seconds']:>9}")
        if row["failure"]:
            print(row["failure"])


if __name__ == "__main__":
    sys.exit(main())
