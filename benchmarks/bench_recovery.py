"""How much of what compression cost does `edgecompress recover` win back, with which images and in what time?

    python benchmarks/bench_recovery.py --cifar CIFAR_DIR --cifar-weights WEIGHTS_DIR \\
        --imagenet-calibration CALIB_DIR --imagenet-report VAL_DIR --output recovery.jsonl
    python benchmarks/bench_recovery.py --table recovery.jsonl

  train       ResNet-20 at 45 % of its MACs, recovered with the training images of CIFAR-10 and their labels
  synthetic   ResNet-20 at 50 % of its MACs: 512 synthetic images compress it, choose and recover it, and
              no real image is seen before the report; 100 iterations per image are half of the usual
  few-images  EfficientNet-Lite0 at 78 % of its MACs, with 1,000 images whose labels choose, but teach nothing

Networks are made by `compress` and recovered by `recover`, with their defaults but for what is named here.
Accuracy is on images used for nothing else: the 10,000 test images of CIFAR-10, or VAL_DIR. `--pilot` shows
training images that were left out instead, to try settings on. A row that is in `--output` is not made again;
rows are printed as well.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.recover_results import RecoverResult
from edgecompress.data.sources import open_source
from edgecompress.data.splits import make_splits
from edgecompress.nets.artefact import load, read_plan
from edgecompress.pipeline.compress import compress
from edgecompress.pipeline.evaluate import accuracy
from edgecompress.pipeline.recover import recover
from edgecompress.pipeline.synthesize import synthesize

Row = dict[str, Any]
KEY = ("case", "preset", "minutes", "steps", "seed", "pilot", "select_on_test", "precision")
"""What tells rows apart."""
SYNTHETIC_IMAGES, SELECTION, ITERATIONS = 512, 64, 100
PILOT_IMAGES = 3000
HEADS = (
    *("case", "model", "MACs", "preset", "budget", "seeds"),
    *("dense", "compressed", "recovered", "change", "CPU minutes"),
)
REPORT_IMAGES = {"train": 10_000, "synthetic": 10_000, "few-images": 500}
"""All there are; only recoveries report, on dense, compressed and recovered networks."""
CHOOSING = 1000
"""Of the test images, with `--select-on-test`."""
MINUTES = {"train": 20.0, "synthetic": 4.0, "few-images": 8.0}
"""Of training, one thread."""


def main() -> None:
    """Prints a line per case and seed, or the table of lines written before."""
    options = _options()
    if options.table:
        _print_table(_read(options.table))
        return
    torch.set_num_threads(options.threads)
    done = {_key(row) for row in _read(options.output)} if options.output else set()
    for row in _rows(options, done):
        line = json.dumps(row | _machine(options.threads))
        print(line, flush=True)
        if options.output:
            with options.output.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cifar", help="CIFAR-10 in any form `edgecompress list data` names")
    parser.add_argument("--cifar-weights", type=Path, help="folder of resnet20-*.th")
    parser.add_argument("--imagenet-calibration", help="1,000 images, and labels.txt")
    parser.add_argument("--imagenet-report", help="other images, and labels.txt")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--presets", nargs="+", default=["ours"], help="of `recover`")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, help="of training; by default as in the docs")
    parser.add_argument("--steps", type=int, help="in place of minutes")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="compressed networks found here are used"
    )
    parser.add_argument(
        "--select-on-test",
        action="store_true",
        help="1,000 test images choose, the others are reported on; of train",
    )
    parser.add_argument("--precision", help="as of `recover`")
    parser.add_argument("--pilot", action="store_true", help="accuracy on training images left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="file that rows are added to")
    parser.add_argument("--table", type=Path, help="only print the table of lines written before")
    return parser.parse_args()


def _rows(options: argparse.Namespace, done: set[tuple[Any, ...]]) -> Iterator[Row]:
    for case in options.cases:
        minutes = None if options.steps else options.minutes or MINUTES[case]
        for seed in options.seeds:
            for preset in options.presets:
                told = {"case": case, "preset": preset, "minutes": minutes, "steps": options.steps}
                told |= {"seed": seed, "pilot": options.pilot}
                if options.select_on_test and case == "train":
                    told["select_on_test"] = True
                if options.precision:
                    told["precision"] = options.precision
                if _key(told) not in done:
                    yield told | CASES[case](options, told)


def train(options: argparse.Namespace, told: Row) -> Row:
    """Recovers on all training images, with labels."""
    name = f"bench-train-{told['seed']}"
    model = _resnet20(options) | {"data": options.cifar, "budget": "macs=45%", "name": name}
    seconds = _compressed(options, told, model)
    return _recovered(options, told, name, level="full") | {"compress_minutes": seconds / 60}


def synthetic(options: argparse.Namespace, told: Row) -> Row:
    """Recovers on synthetic images, which compressed the network, too."""
    name = f"bench-synthetic-{told['seed']}"
    images = options.runs / f"{name}-images"
    began = time.perf_counter()
    if not images.is_dir():
        asked: Row = {
            "images": SYNTHETIC_IMAGES,
            "iterations": ITERATIONS,
            "seed": told["seed"],
            "runs_dir": options.runs,
        }
        synthesize(**_resnet20(options), **asked, name=images.name)
    made = time.perf_counter() - began
    model: Row = {"data": str(images), "report_data": options.cifar, "budget": "macs=50%", "name": name}
    model |= {"calibration_images": SYNTHETIC_IMAGES - SELECTION, "selection_images": SELECTION}
    seconds = _compressed(options, told, _resnet20(options) | model)
    found = _recovered(options, told, name, level="synthetic")
    return found | {"images_minutes": made / 60, "compress_minutes": seconds / 60}


def few_images(options: argparse.Namespace, told: Row) -> Row:
    """Recovers on 1,000 images, without their labels."""
    name = f"bench-few-images-{told['seed']}"
    data = {"data": options.imagenet_calibration, "report_data": options.imagenet_report}
    model = {"model": "zoo:efficientnet_lite0", **data, "budget": "macs=78%", "name": name}
    seconds = _compressed(options, told, model)
    return _recovered(options, told, name, level="distill") | {"compress_minutes": seconds / 60}


CASES: dict[str, Callable[[argparse.Namespace, Row], Row]] = {
    "train": train,
    "synthetic": synthetic,
    "few-images": few_images,
}


def _resnet20(options: argparse.Namespace) -> Row:
    (weights,) = options.cifar_weights.glob("resnet20-*.th")
    return {"model": "zoo:resnet20", "weights": str(weights)}


def _compressed(options: argparse.Namespace, told: Row, model: Row) -> float:
    """Makes a run of `compress` unless it is there, and returns how many seconds that took."""
    began = time.perf_counter()
    if not (options.runs / model["name"]).is_dir():
        compress(**model, report_images=0, seed=told["seed"], runs_dir=options.runs)
    return time.perf_counter() - began


def _recovered(options: argparse.Namespace, told: Row, name: str, *, level: str) -> Row:
    began = time.perf_counter(), time.process_time()
    result = recover(
        name,
        level=level,
        preset=told["preset"],
        minutes=told["minutes"] or 1.0,
        steps=told["steps"],
        seed=told["seed"],
        runs_dir=options.runs,
        name=f"{name}-{told['preset']}",
        overwrite=True,
        report_images=0 if told["pilot"] else _reported_on(told),
        select_on_test="select_on_test" in told,
        precision=told.get("precision", "float32"),
    )
    spent = (time.perf_counter() - began[0]) / 60, (time.process_time() - began[1]) / 60
    found = _left_out(options, name, result) if told["pilot"] else _reported(result)
    return found | {
        "model": result.plan.model.source,
        "macs": result.compressed.macs / result.dense.macs,
        "wall_minutes": round(spent[0], 2),
        "cpu_minutes": round(spent[1], 2),
        "ladder": [
            rung.model_dump(include={"level", "gain", "minutes", "kept", "steps"}) for rung in result.ladder
        ],
        "images": result.split.model_dump(include={"calibration", "selection", "report"}),
    }


def _reported_on(told: Row) -> int:
    """Returns how many images: all that do not choose."""
    return REPORT_IMAGES[told["case"]] - (CHOOSING if "select_on_test" in told else 0)


def _reported(result: RecoverResult) -> Row:
    networks = {"dense": result.dense, "before": result.before, "after": result.compressed}
    return {what: one.accuracy.top1 for what, one in networks.items() if one.accuracy is not None}


def _left_out(options: argparse.Namespace, name: str, result: RecoverResult) -> Row:
    """Returns top-1 on training images: those that chose, or of CIFAR-10 where all images were synthetic."""
    if "synthetic" not in name:
        kept = [rung.after for rung in result.ladder if rung.kept and rung.after is not None]
        start = result.ladder[0].before
        end = kept[-1] if kept else start
        return {"before": start.top1, "after": end.top1, "divergence": end.divergence, "right": end.right}
    paths = {"before": options.runs / name, "after": Path(result.run)}
    source = open_source(options.cifar, read_plan(paths["before"]).model.preprocess)
    split = make_splits(source, calibration=1, selection=PILOT_IMAGES, report=0, seed=0).selection
    return {
        what: accuracy(load(path), split, size=250, progress=NO_PROGRESS, what=what).top1
        for what, path in paths.items()
    }


def _machine(threads: int) -> Row:
    return {
        "machine": f"{os.cpu_count()}-core {platform.machine()}",
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY)


def _read(file: Path) -> list[Row]:
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]


def _print_table(rows: list[Row]) -> None:
    print(f"| {' | '.join(HEADS)} |")
    print(f"|{'---|' * len(HEADS)}")
    for group in dict.fromkeys(_key(row)[:4] for row in rows if not row["pilot"]):
        own = [row for row in rows if _key(row)[:4] == group and not row["pilot"]]
        first = own[0]
        lost = _told([row["after"] - row["dense"] for row in own], sign="+")
        budget = f"{first['steps']} steps" if first["steps"] else f"{first['minutes']:g} min"
        cells = [
            first["case"],
            first["model"],
            f"{100 * first['macs']:.1f} %",
            first["preset"],
            budget,
            len(own),
        ]
        cells += [_told([row[what] for row in own]) for what in ("dense", "before", "after")]
        cells += [lost, _told([row["cpu_minutes"] for row in own], digits=1)]
        print(f"| {' | '.join(map(str, cells))} |")


def _told(values: list[float], *, sign: str = "", digits: int = 2) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(set(values)) > 1 else ""
    return f"{statistics.mean(values):{sign}.{digits}f}{spread}"


if __name__ == "__main__":
    main()
