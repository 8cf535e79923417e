"""How much accuracy is left after compression without labels and without training?

    python benchmarks/bench_posttraining.py --cifar CIFAR_DIR --cifar-weights WEIGHTS_DIR \\
        --imagenet-calibration CALIB_DIR --imagenet-report VAL_DIR --draws 3 > posttraining.jsonl

CIFAR_DIR holds CIFAR-10 in any form `edgecompress list data` names, WEIGHTS_DIR the checkpoints
resnet20-*.th and resnet56-*.th, the ImageNet folders images and labels.txt. One JSON object per line on
stdout, tables in Markdown at the end on stderr; `--table FILE` makes tables from such lines again.

Our method and its parts see 512 unlabelled images per draw (448 shape the weights, 64 choose between
alternatives) and are averaged over the draws. The papers' rules look at weights only, so one run of each
is all there is. All report on the same images, which none has seen.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.types import Metric
from edgecompress.data.sources import open_source
from edgecompress.data.splits import Splits, make_splits
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.engine import compress_to
from edgecompress.pipeline.evaluate import accuracy, batch_size
from edgecompress.pipeline.preparation import Prepared, Recipe, Setting, prepare
from edgecompress.search.contract import shape_costs

CALIBRATION, SELECTION = 448, 64

PAPER = Recipe(factors="plain", refit="none", local_search=False, batch_norm="keep")
RULES = (
    "uniform",
    "energy",
    "global-values",
    "global-values-relative",
    "lr-s2",
    "lr-s2-published",
    "alds",
    "alds-macs",
    "f-group",
    "trp",
)
BASELINES = {rule: replace(PAPER, rank_selection=rule) for rule in RULES} | {
    "vbmf (Tucker-2)": replace(PAPER, rank_selection="vbmf", methods=("tucker2",)),
    "plain SVD, exact allocation": PAPER,
}
OURS = {
    "ours: aware factors, exact allocation": replace(PAPER, factors="aware"),
    "ours: + refit": replace(PAPER, factors="aware", refit="both", batch_norm="auto"),
    "ours: + local search + refit": Recipe(),
}


@dataclass(frozen=True)
class Task:
    """A network, where its images are, and the shares of its MACs to keep."""

    name: str
    source: str
    weights: str | None
    data: str
    report_data: str | None
    shares: tuple[float, ...]
    baselines: bool


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """Yields the networks whose files were given."""
    if args.cifar and args.cifar_weights:
        for name, shares, baselines in (("resnet20", (0.7, 0.5), True), ("resnet56", (0.5,), False)):
            (weights,) = args.cifar_weights.glob(f"{name}-*.th")
            yield Task(name, f"zoo:{name}", str(weights), str(args.cifar), None, shares, baselines)
    if args.imagenet_calibration and args.imagenet_report:
        data = str(args.imagenet_calibration), str(args.imagenet_report)
        yield Task("efficientnet_lite0", "zoo:efficientnet_lite0", None, *data, (0.87, 0.78), True)


def run(task: Task, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yields one row per method, share and draw; the dense model first."""
    loaded = load_model(task.source, weights=task.weights)
    for draw in range(args.first_draw, args.first_draw + args.draws):
        splits = split(task, loaded, draw, args.report_images)
        if draw == 0:
            yield {
                "model": task.name,
                "method": "dense",
                "share": 1.0,
                "top1": top1(loaded.module, loaded, splits),
            }
        recipes = OURS | (BASELINES if task.baselines and draw == 0 else {})
        wanted = [n for n in recipes if not args.methods or any(part in n for part in args.methods)]
        setting = make_setting(loaded, splits)
        shared: dict[tuple[str, ...], Prepared] = {}
        for name in wanted:
            prepared = prepared_for(replace(recipes[name], seed=draw), setting, shared)
            yield from rows(task, name, prepared, loaded, splits)


def prepared_for(recipe: Recipe, setting: Setting, shared: dict[tuple[str, ...], Prepared]) -> Prepared:
    """Returns the statistics and candidates a recipe starts from, made once for all that share them."""
    key = (recipe.factors, recipe.rank_selection, *recipe.methods)
    if key not in shared:
        shared[key] = prepare(setting, recipe, NO_PROGRESS)
    return replace(shared[key], recipe=recipe)


def rows(
    task: Task, name: str, prepared: Prepared, loaded: LoadedModel, splits: Splits
) -> Iterator[dict[str, object]]:
    """Yields a row per share of the MACs."""
    for share in task.shares:
        row = {"model": task.name, "method": name, "share": share, "draw": prepared.recipe.seed}
        start = time.perf_counter()
        try:
            found = outcome(prepared, share, loaded, splits)
        except (BudgetError, ConfigError) as error:
            found = {"error": str(error)}
        yield row | found | {"total_s": time.perf_counter() - start}


def outcome(prepared: Prepared, share: float, loaded: LoadedModel, splits: Splits) -> dict[str, object]:
    """Compresses to a share of the MACs and measures what came of it."""
    limit = share * prepared.setting.costs["macs"].dense
    compressed = compress_to(prepared, "macs", limit, NO_PROGRESS)
    macs = total_macs(profile(compressed.module, loaded.ref.input_shape))
    return {
        "kept_macs": macs / prepared.setting.costs["macs"].dense,
        "kept_params": total_params(compressed.module) / prepared.setting.costs["params"].dense,
        "top1": top1(compressed.module, loaded, splits),
        "seconds": compressed.seconds,
        "steps": compressed.steps,
    }


def split(task: Task, loaded: LoadedModel, draw: int, report_images: int | None) -> Splits:
    """Draws the images; the report images are the same for every draw."""
    preprocess = loaded.ref.preprocess
    other = None if task.report_data is None else open_source(task.report_data, preprocess)
    source = open_source(task.data, preprocess)
    return make_splits(
        source,
        calibration=CALIBRATION,
        selection=SELECTION,
        report=report_images,
        seed=draw,
        report_source=other,
    )


def make_setting(loaded: LoadedModel, splits: Splits) -> Setting:
    """Puts the model and its images together."""
    shape = loaded.ref.input_shape
    layers, _ = find_layers(loaded.module, loaded.targets, shape)
    total: dict[Metric, float] = {
        "macs": total_macs(profile(loaded.module, shape)),
        "params": total_params(loaded.module),
    }
    size = batch_size(shape)
    calibration = [images for images, _ in splits.calibration.batches(size)]
    selection = [images for images, _ in splits.selection.batches(size)]
    return Setting(loaded.module, layers, shape_costs(total), calibration, selection)


def top1(module: torch.nn.Module, loaded: LoadedModel, splits: Splits) -> float:
    """Returns the top-1 accuracy in percent on the report images."""
    assert splits.report is not None
    size = batch_size(loaded.ref.input_shape)
    return accuracy(module, splits.report, size=size, progress=NO_PROGRESS, what="report").top1


def table(lines: list[dict[str, object]]) -> str:
    """Returns one Markdown table per network."""
    parts = []
    for model in dict.fromkeys(row["model"] for row in lines):
        mine = [row for row in lines if row["model"] == model]
        (dense,) = (float(str(row["top1"])) for row in mine if row["method"] == "dense")
        shares = sorted({float(str(row["share"])) for row in mine if row["method"] != "dense"}, reverse=True)
        head = "".join(f" {share:.0%} of the MACs |" for share in shares)
        parts += [
            "",
            f"**{model}**, dense {dense:.2f} % top-1",
            "",
            f"| method |{head}",
            "|---|" + "---|" * len(shares),
        ]
        for method in dict.fromkeys(row["method"] for row in mine if row["method"] != "dense"):
            cells = [
                cell([r for r in mine if r["method"] == method and r["share"] == s], dense) for s in shares
            ]
            parts.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(parts)


def cell(found: list[dict[str, object]], dense: float) -> str:
    """Returns accuracy and loss, with the spread over draws where there are several."""
    values = [float(str(row["top1"])) for row in found if "top1" in row]
    if not values:
        return "not reachable" if found else ""
    mean = statistics.mean(values)
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean:.2f}{spread} ({mean - dense:+.2f})"


def machine() -> dict[str, object]:
    """Returns what the figures were made on."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "images": f"{CALIBRATION} calibration + {SELECTION} selection",
    }


def main() -> None:
    """Runs what was asked for and prints it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("cifar", "cifar-weights", "imagenet-calibration", "imagenet-report", "table"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first-draw", type=int, default=0, help="to go on where another run ended")
    parser.add_argument("--report-images", type=int)
    parser.add_argument("--only", nargs="*", default=[], help="names of networks")
    parser.add_argument("--methods", nargs="*", default=[], help="parts of names of methods")
    args = parser.parse_args()
    if args.table:
        lines = [json.loads(line) for line in args.table.read_text().splitlines()]
        print(table([line for line in lines if "model" in line]))
        return
    print(json.dumps(machine()), flush=True)
    lines = []
    for task in tasks(args):
        for row in run(task, args) if not args.only or task.name in args.only else ():
            lines.append(row)
            print(json.dumps(row), flush=True)
    if any(line["method"] == "dense" for line in lines):
        print(table(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
