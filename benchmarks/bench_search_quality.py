"""Which search keeps most accuracy for the same milliseconds, without any training?

    python benchmarks/bench_search_quality.py --model zoo:resnet20 --weights FILE --data CIFAR \\
        --table pixel4.json --table local.json --seeds 3 > quality.jsonl
    python benchmarks/bench_search_quality.py --markdown quality.jsonl

Every search is given the same table and the same share of the dense network's milliseconds. Ours see 512
unlabelled training images (448 for the weights, 64 for choosing) and repair what they built; so does `exact`
without repair, to show what the allocation alone is worth. The papers' searches use plain SVD factors and no
repair, as published; `svd-nas-paper` is trained on the same images, `--paper-steps` steps. All report on the
test images, which none has seen. With `--front` the time of 20 operating points is compared with that of one.

Prints a JSON line per search, share and seed, with machine, date and seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgecompress.core.search_results import SearchResult
from edgecompress.errors import BudgetError
from edgecompress.pipeline import strategies
from edgecompress.pipeline.search import search

PLAIN = {"factors": "plain", "refit": False, "batch_norm": "keep", "methods": ("lowrank",)}
SEARCHES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "exact": {},
    "exact, not repaired": {"search": "exact", "refit": False, "batch_norm": "keep"},
    "svd-nas": {},
    "svd-nas-paper": PLAIN,
    "alds-macs": PLAIN,
    "alds": PLAIN,
    "lr-s2-published": PLAIN,
    "lr-s2": PLAIN,
    "global-values": PLAIN,
    "uniform": PLAIN,
}
SEEDLESS = ("alds", "alds-macs", "lr-s2", "lr-s2-published", "global-values", "uniform")
"""These look at weights only, so one run of each is all there is."""
SHARES = (0.75, 0.6, 0.5)


def main() -> None:
    """Runs the benchmark, or turns its lines into tables."""
    options = _options()
    if options.markdown:
        print(_markdown([json.loads(line) for file in options.markdown for line in file.open()]))
        return
    if options.paper_steps:
        strategies.PAPER_STEPS = options.paper_steps
    for table in options.table:
        for name in options.searches:
            for share in options.shares:
                for seed in range(1 if name in SEEDLESS else options.seeds):
                    print(json.dumps(_row(options, table, name, share, seed)), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="zoo:resnet20")
    parser.add_argument("--weights")
    parser.add_argument("--data")
    parser.add_argument("--table", action="append", default=[])
    parser.add_argument("--searches", nargs="+", default=list(SEARCHES), choices=list(SEARCHES))
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0, help="of measuring on the table's device")
    parser.add_argument("--report-images", type=int)
    parser.add_argument("--paper-steps", type=int)
    parser.add_argument("--markdown", nargs="+", type=Path, metavar="JSONL")
    return parser.parse_args()


def _row(options: argparse.Namespace, table: str, name: str, share: float, seed: int) -> dict[str, object]:
    start = time.perf_counter()
    row: dict[str, object] = {
        "model": options.model,
        "table": Path(table).name,
        "search": name,
        "share": share,
        "seed": seed,
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": round(os.getloadavg()[0], 1),
    }
    try:
        found = _searched(options, table, name, share, seed)
    except BudgetError as error:
        print(f"{name} at {share}: {error}", file=sys.stderr)
        return row | {"top1": None}
    return row | _figures(found) | {"seconds_in_all": round(time.perf_counter() - start, 1)}


def _searched(options: argparse.Namespace, table: str, name: str, share: float, seed: int) -> SearchResult:
    with tempfile.TemporaryDirectory() as runs:
        return search(
            options.model,
            latency_table=table,
            budget=f"ms={100 * share:g}%",
            weights=options.weights,
            data=options.data,
            calibration_images=448,
            selection_images=64,
            report_images=options.report_images,
            rounds=options.rounds,
            seed=seed,
            runs_dir=Path(runs),
            **{"search": name} | SEARCHES[name],
        )


def _figures(found: SearchResult) -> dict[str, object]:
    dense, after = found.dense.accuracy, found.compressed.accuracy
    assert dense is not None and after is not None
    latency = found.latency
    assert latency is not None
    return {
        "dense_top1": dense.top1,
        "top1": after.top1,
        "images": after.images,
        "dense_ms": latency.dense_predicted_ms,
        "predicted_ms": latency.predicted_ms,
        "measured_ms": latency.measured_ms,
        "rounds": len(latency.rounds),
        "macs_share": found.compressed.macs / found.dense.macs,
        "search_seconds": round(_search_seconds(found), 1),
        "stages": found.seconds,
    }


def _search_seconds(found: SearchResult) -> float:
    """Returns the time to choose: without repair, report and measurements."""
    after = ("factors", "repair", "batch norm", "all")
    return sum(seconds for stage, seconds in found.seconds.items() if stage not in after)


def _markdown(rows: list[dict[str, Any]]) -> str:
    return "\n\n".join(_tables(rows))


def _tables(rows: list[dict[str, Any]]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["model"], row["table"]].append(row)
    for (model, table), group in groups.items():
        shares = sorted({row["share"] for row in group}, reverse=True)
        dense = next(row["dense_top1"] for row in group if row["top1"] is not None)
        lines = [
            f"**{model}**, {table}, dense {dense:.2f} % top-1\n",
            f"| search | {' | '.join(f'{share:g} of dense ms' for share in shares)} | seconds to choose |",
            "|---" * (len(shares) + 2) + "|",
        ]
        for name in dict.fromkeys(row["search"] for row in group):
            own = [row for row in group if row["search"] == name]
            cells = [_cell([row for row in own if row["share"] == share]) for share in shares]
            spent = [row["search_seconds"] for row in own if row["top1"] is not None]
            lines.append(f"| {name} | {' | '.join(cells)} | {statistics.fmean(spent):.0f} |" if spent else "")
        yield "\n".join(filter(None, lines))


def _cell(rows: list[dict[str, Any]]) -> str:
    tops = [row["top1"] for row in rows if row["top1"] is not None]
    if not tops:
        return "not reachable" if rows else ""
    drop = statistics.fmean(tops) - rows[0]["dense_top1"]
    spread = f" ± {statistics.stdev(tops):.2f}" if len(tops) > 1 else ""
    return f"{statistics.fmean(tops):.2f}{spread} ({drop:+.2f})"


if __name__ == "__main__":
    main()
