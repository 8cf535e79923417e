"""How far off are milliseconds predicted from a table, how long does it take to build, and does it resume?

    python benchmarks/bench_latency_model.py --where emulated-a76 > latency_emulated.jsonl
    python benchmarks/bench_latency_model.py --where local:tflite --where local:onnx > latency_local.jsonl
    python benchmarks/bench_latency_model.py --where emulated-a76 --models zoo:resnet20 --kills 10
    python benchmarks/bench_latency_model.py --table latency_emulated.jsonl latency_local.jsonl

Builds the table of each model in an empty folder and measures `--plans` random plans that were not used in
the fit, as whole networks. With `--tables FILE` that table is checked as it is. With `--kills N` a build is
killed with SIGKILL at N random moments and must end with the table of one that was not.

Counts of the emulated core are kept in the user's cache; give `--fresh` for the time it takes without.
Prints a JSON line per model and place.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgecompress.core.latency_results import BuildResult, CheckResult

MODELS = (
    "zoo:fashion_resnet",
    "zoo:fashion_vit",
    "zoo:resnet20",
    "zoo:resnet56",
    "zoo:mobilenet_v2",
    "zoo:efficientnet_lite0",
    "zoo:resnet18",
)


def main() -> None:
    """Runs the benchmark, or turns its lines into a table."""
    options = _options()
    if options.table:
        print(
            _table(
                [json.loads(line) for file in options.table for line in Path(file).read_text().splitlines()]
            )
        )
        return
    for where in options.where:
        for model in options.models:
            for row in _rows(where, model, options):
                print(json.dumps(row | _circumstances()), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--where", action="append", default=[], metavar="DEVICE[:FORMAT]")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--tables", metavar="FILE", help="check this table and build none")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="count everything anew")
    parser.add_argument("--table", nargs="+", metavar="JSONL", help="print results as Markdown")
    return parser.parse_args()


def _circumstances() -> dict[str, object]:
    machine = f"{os.cpu_count()}-core {platform.machine()}"
    return {"machine": machine, "date": f"{datetime.now(UTC):%Y-%m-%d}", "load": round(os.getloadavg()[0], 1)}


def _rows(where: str, model: str, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.kills:
            yield _killed(where, model, folder, options.kills)
            return
        table, built = options.tables, None
        if table is None:
            table = str(folder / "table.json")
            environment = _fresh_cache(folder) if options.fresh else {}
            said = _call(_build(where, model, table), environment)
            built = BuildResult.model_validate_json(said)
        checked = _call(["check", table, "-m", model, "--plans", str(options.plans), "--json"])
        yield _row(where, model, built, CheckResult.model_validate_json(checked))


def _fresh_cache(folder: Path) -> dict[str, str]:
    """Returns an environment in which the emulated core is prepared and nothing is counted yet."""
    environment = {"XDG_CACHE_HOME": str(folder / "cache")}
    _run([sys.executable, "-m", "edgecompress", "device", "prepare", "emulated-a76"], environment)
    return environment


def _build(where: str, model: str, table: str) -> list[str]:
    device, _, format = where.partition(":")
    return ["build", "--device", device, "--format", format or "tflite", "-m", model, "-o", table, "--json"]


def _call(words: Sequence[str], environment: dict[str, str] | None = None) -> str:
    return _run([sys.executable, "-m", "edgecompress", "latency", *words], environment or {})


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment
    )
    return done.stdout


def _row(where: str, model: str, built: BuildResult | None, checked: CheckResult) -> dict[str, object]:
    (network,) = checked.networks
    summary = None if built is None else built.tables[0]
    return {
        "where": where,
        "model": model,
        "provenance": checked.provenance,
        "blocks": None if summary is None else summary.entries,
        "build_seconds": None if built is None else built.seconds,
        "plans": len(network.timings),
        "mean_error": network.mean_error,
        "worst_error": network.worst_error,
        "bias": statistics.fmean(one.error for one in network.timings),
        "rank_correlation": network.rank_correlation,
        "ms": [
            min(one.measured_ms for one in network.timings),
            max(one.measured_ms for one in network.timings),
        ],
    }


def _killed(where: str, model: str, folder: Path, kills: int) -> dict[str, object]:
    """Builds a table with interruptions in a cache of its own, and one without, and compares them."""
    environment = _fresh_cache(folder)
    rng, left, starts = random.Random(0), kills, 0
    command = [
        sys.executable,
        "-m",
        "edgecompress",
        "latency",
        *_build(where, model, str(folder / "killed.json")),
    ]
    while True:
        starts += 1
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, start_new_session=True, env=os.environ | environment
        )
        end = time.monotonic() + rng.uniform(3, 30) if left else float("inf")
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        left -= 1
    _call(_build(where, model, str(folder / "whole.json")), _fresh_cache(folder / "other"))
    found = [json.loads((folder / name).read_text()) for name in ("killed.json", "whole.json")]
    equal = all(found[0][key] == found[1][key] for key in found[0] if key != "created")
    return {"where": where, "model": model, "kills": kills - left, "starts": starts, "identical": equal}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| model | where | blocks | build | ms | mean error | worst | rank correlation |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        if "kills" not in row:
            lines.append(f"| {' | '.join(_cells(row))} |")
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    seconds, (low, high) = row["build_seconds"], row["ms"]
    return [
        row["model"],
        f"{row['where']} ({row['provenance']})",
        str(row["blocks"] or ""),
        "" if seconds is None else f"{seconds / 60:.1f} min",
        f"{low:.3g} to {high:.3g}",
        f"{100 * row['mean_error']:.1f} %",
        f"{100 * row['worst_error']:.1f} %",
        f"{row['rank_correlation']:.3f}",
    ]


if __name__ == "__main__":
    main()
