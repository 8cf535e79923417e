"""Measures how much memory commands take with large networks, against the ceilings that are promised.

    python tests/soak/memory.py --json

Weights are random and images are noise: memory follows from shapes and counts alone. The peak is the
resident memory of the command's process, as the system counts it (ru_maxrss), so libraries are part of it.
Exits with 1 above a ceiling.
"""

# ruff: noqa: T201  what it prints is its result

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

IMAGES = 96
"""Of 224 x 224: 64 to calibrate, 16 to select and 16 to report on."""
COUNTS = ("--calibration-images", "64", "--selection-images", "16", "--report-images", "16")
DATA = ("--data", "images.npz")


@dataclass(frozen=True)
class Case:
    """A command and how much it may take."""

    name: str
    words: tuple[str, ...]
    ceiling_mb: int


CASES = (
    Case(
        "compress ResNet-18",
        ("compress", "zoo:resnet18", *DATA, *COUNTS, "--budget", "macs=50%", "--name", "resnet18"),
        4500,
    ),
    Case(
        "export ResNet-18",
        ("export", "resnet18", "--onnx", "--tflite", "--converter", "onnx2tf", "--images", "16"),
        3000,
    ),
    Case(
        "prune Swin-T",
        ("prune", "torchvision:swin_t", *DATA, *COUNTS, "--dims", "40%", "--name", "swin_t"),
        4000,
    ),
    Case("export Swin-T", ("export", "swin_t", "--onnx", "--images", "16"), 3000),
)


@dataclass(frozen=True)
class Row:
    """What a command took."""

    name: str
    peak_mb: int
    ceiling_mb: int
    seconds: float
    failure: str | None


def main() -> int:
    """Runs all commands asked for and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="commands, as `prune Swin-T`; all of them by default")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (IMAGES, 224, 224, 3), dtype=np.uint8)
        np.savez(Path(name) / "images.npz", x=pixels, y=rng.integers(0, 1000, IMAGES))
        rows = [_row(one, Path(name)) for one in CASES if not asked.only or one.name in asked.only]
    _print(rows, as_json=asked.json)
    return int(any(row.failure or row.peak_mb > row.ceiling_mb for row in rows))


def _row(case: Case, folder: Path) -> Row:
    start, log = time.monotonic(), folder / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "edgecompress", *case.words],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )
        _, status, used = os.wait4(process.pid, 0)  # unlike RUSAGE_CHILDREN, not the peak of all before
    process.returncode = os.waitstatus_to_exitcode(status)
    failure = log.read_text()[-500:] if process.returncode else None
    row = Row(
        case.name, round(used.ru_maxrss / 1024), case.ceiling_mb, round(time.monotonic() - start, 1), failure
    )
    print(row, file=sys.stderr, flush=True)
    return row


def _print(rows: list[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'command':22}{'peak MB':>10}{'ceiling MB':>12}{'seconds':>10}")
    for row in rows:
        print(f"{row.name:22}{row.peak_mb:>10}{row.ceiling_mb:>12}{row.seconds:>10}")
        if row.failure:
            print(row.failure)


if __name__ == "__main__":
    sys.exit(main())
