"""The part `efficientnet` of `bench_pruning.py`: widths and ranks in one budget against ranks alone."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgecompress.errors import EdgeCompressError
from edgecompress.pipeline.search import search

SPACES: dict[str, dict[str, str]] = {
    "joint": {"space": "joint"},
    "widths": {"space": "widths"},
    "lowrank, exact": {"space": "lowrank", "search": "exact"},
}
CALIBRATION, SELECTION = 448, 64


def search_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per share of the MACs and search space."""
    for share in options.shares:
        for name in options.spaces:
            row = {"model": "efficientnet_lite0", "space": name, "share": share}
            start = time.perf_counter()
            try:
                found = _searched(options, name, share)
            except EdgeCompressError as error:
                found = {"error": str(error)}
            yield row | found | {"seconds": round(time.perf_counter() - start, 1)}


def _searched(options: argparse.Namespace, name: str, share: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as runs:
        found = search(
            "zoo:efficientnet_lite0",
            budget=f"macs={100 * share:g}%",
            data=options.imagenet_calibration,
            report_data=options.imagenet_report,
            calibration_images=CALIBRATION,
            selection_images=SELECTION,
            runs_dir=Path(runs),
            **SPACES[name],  # type: ignore[arg-type]  # all of them strings
        )
    dense, after = found.dense.accuracy, found.compressed.accuracy
    assert dense is not None and after is not None  # the report images have labels
    return {
        "dense_top1": dense.top1,
        "top1": after.top1,
        "images": after.images,
        "macs": found.compressed.macs / found.dense.macs,
        "params": found.compressed.params / found.dense.params,
        "blocks": len(found.plan.choices),
        "narrowed": len(found.plan.narrowings),
        "steps": found.steps,
        "stages": found.seconds,
    }
