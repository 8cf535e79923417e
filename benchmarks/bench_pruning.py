"""How good are networks that lost channels and dimensions, and how much faster?

    python benchmarks/bench_pruning.py --parts exact vit speed --fashion fashion-mnist:DIR > pruning.jsonl
    python benchmarks/bench_pruning.py --parts efficientnet --imagenet-calibration CALIB \\
        --imagenet-report VAL >> pruning.jsonl
    python benchmarks/bench_pruning.py --parts widths --cifar CIFAR --resnet56-weights FILE >> pruning.jsonl
    python benchmarks/bench_pruning.py --markdown pruning.jsonl

- `exact`: half of the units of every group is zeroed at the gates, or taken away; both must say the same.
- `vit`: dimensions of the embedded transformer go by several scores and by torch-pruning (`pip install
  torch-pruning`), at equal MACs; then all are trained alike, on labels and what the dense network says.
- `efficientnet`: search over widths and ranks in one budget, against ranks alone; no training.
- `widths`: as `vit`, for channels of ResNet-56.
- `speed`: dense and pruned files of large transformers, measured in turns.

Prints a JSON line per row, with machine, date and load. Report images are used for nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pruning_exact import SPEED, exact_rows, speed_rows
from pruning_search import SPACES, search_rows
from pruning_tables import markdown
from pruning_training import vit_rows, width_rows

PARTS = {
    "exact": exact_rows,
    "vit": vit_rows,
    "efficientnet": search_rows,
    "widths": width_rows,
    "speed": speed_rows,
}


def main() -> None:
    """Runs the parts, or turns their lines into tables."""
    options = _options()
    if options.markdown:
        print(markdown([json.loads(line) for file in options.markdown for line in file.open()]))
        return
    torch.set_num_threads(1)
    for part in options.parts:
        for row in PARTS[part](options):
            print(json.dumps({"part": part} | row | _circumstances()), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--imagenet-calibration", metavar="FOLDER")
    parser.add_argument("--imagenet-report", metavar="FOLDER")
    parser.add_argument("--spaces", nargs="+", default=["joint", "lowrank, exact"], choices=list(SPACES))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.87, 0.78], help="of efficientnet")
    parser.add_argument("--fashion", metavar="DATA", default="fashion-mnist")
    parser.add_argument("--cifar", metavar="DATA")
    parser.add_argument("--resnet56-weights", metavar="FILE")
    parser.add_argument("--seeds", type=int, default=2, help="of vit and widths")
    parser.add_argument("--steps", type=int, default=300, help="of training, of vit and widths")
    parser.add_argument("--training-images", type=int, default=60_000, help="at most; likewise")
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.2, 0.4, 0.6], help="likewise")
    parser.add_argument(
        "--methods", nargs="+", help="likewise, by name or what stands before a colon; all when missing"
    )
    parser.add_argument("--networks", nargs="+", default=list(SPEED), choices=list(SPEED), help="of speed")
    parser.add_argument("--formats", nargs="+", default=["onnx", "tflite"], help="of speed")
    parser.add_argument("--preset", default="quick", help="of speed")
    parser.add_argument("--markdown", nargs="+", type=Path, metavar="JSONL")
    return parser.parse_args()


def _circumstances() -> dict[str, Any]:
    return {
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    main()
