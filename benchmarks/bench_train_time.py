"""What does training for compression gain, at equal budgets?

    python benchmarks/bench_train_time.py --parts step lorita optimisers bsconv --fashion fashion-mnist:DIR \\
        --output train_time.jsonl
    python benchmarks/bench_train_time.py --parts decomposable --cifar CIFAR --resnet20-weights FILE \\
        --output train_time.jsonl
    python benchmarks/bench_train_time.py --markdown train_time.jsonl

- `decomposable`: ResNet-20 fine-tuned for all ranks, then cut without retraining, against cuts of the network
  as it was and after ordinary fine-tuning.
- `lorita`: singular values left after training with 1, 2 and 3 factors per weight.
- `optimisers`: accuracy after equally many passes with PUGD, its schedules and triggers, SAM, ASAM and SGD.
- `step`: time of a step of each of them.
- `precision`: time of a step in float32 and in bfloat16.
- `bsconv`: blueprint separable convolutions against ordinary ones and depthwise separable ones.

Settings of a part are changed by `--set PART.NAME=VALUE`; its file, `train_time_PART.py`, has them all. Parts
make rows of several names; `--only` chooses some. `--pilot` tells accuracy on training images that were left
out: settings were chosen by it, and test images are used for nothing else. Prints a JSON line per row, with
machine, date and load, or appends it to `--output`, where rows that are there already are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import train_time_bsconv
import train_time_decomposable
import train_time_lorita
import train_time_optimisers
import train_time_precision
import train_time_step
from train_time_scene import Job, Row
from train_time_tables import markdown

from edgecompress.errors import EdgeCompressError, ModelError

PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Job]]] = {
    "decomposable": train_time_decomposable.jobs,
    "lorita": train_time_lorita.jobs,
    "optimisers": train_time_optimisers.jobs,
    "step": train_time_step.jobs,
    "precision": train_time_precision.jobs,
    "bsconv": train_time_bsconv.jobs,
}


def main() -> None:
    """Runs the parts, or turns their lines into tables."""
    options = _options()
    if options.markdown:
        print(markdown([row for file in options.markdown for row in rows_of(file)]))
        return
    torch.set_num_threads(1)
    try:
        for part in options.parts:
            for job in filter(partial(_is_wanted, options), PARTS[part](options)):
                run(Job({"part": part} | job.key, job.rows), options.output)
    except EdgeCompressError as error:
        sys.exit(f"error: {error}")


def _is_wanted(options: argparse.Namespace, job: Job) -> bool:
    return not options.only or job.key["name"] in options.only


def run(job: Job, output: Path | None) -> None:
    """Prints or appends the rows of a job, all at once; does nothing where they are there already."""
    key = json.loads(json.dumps(job.key))
    if any(key.items() <= row.items() for row in rows_of(output)):
        return
    rows = [key | row | _circumstances() for row in _made(job)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with output.open("a") as file:
        file.write(text)


def _made(job: Job) -> list[Row]:
    try:
        return list(job.rows())
    except ModelError as error:  # a training that diverged is a result
        return [{"error": str(error)}]


def rows_of(file: Path | None) -> list[Row]:
    """Returns the rows of a file; none where there is no file yet."""
    if file is None or not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--cifar", metavar="DATA", help="of decomposable")
    parser.add_argument("--resnet20-weights", metavar="FILE", help="likewise")
    parser.add_argument("--fashion", metavar="DATA", default="fashion-mnist")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of rows; all when missing")
    parser.add_argument("--set", nargs="+", default=[], metavar="PART.NAME=VALUE")
    parser.add_argument("--pilot", action="store_true", help="accuracy on training images left out")
    parser.add_argument("--output", type=Path, metavar="JSONL")
    parser.add_argument("--markdown", nargs="+", type=Path, metavar="JSONL")
    return parser.parse_args()


def _circumstances() -> Row:
    return {
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    main()
