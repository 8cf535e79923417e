"""How much better is a network cut to low ranks, not retrained, after a little Decomposable-Net training?

    python benchmarks/bench_decomposable.py --cifar CIFAR_DIR --weights resnet20-12fca82f.th \\
        --epochs 1 --seeds 3 > decomposable.jsonl

ResNet-20 on CIFAR-10. The trained network is fine-tuned with the joint loss, then cut to shares of its MACs
by its global singular values; the network it started from is cut the same way, and so is one that was
fine-tuned for as many steps without the second loss (`--control`). Batch norms of all are renewed on the same
training images. Nothing is retrained after a cut. Ranks, factors and statistics see training images only;
accuracy is on the whole test set.

One JSON object per line on stdout, a table in Markdown at the end on stderr; `--table FILE` makes the table
from such lines again.
"""

from __future__ import annotations

import argparse
import copy
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
from typing import Any

import torch
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.types import Budget
from edgecompress.data.sources import open_source
from edgecompress.data.splits import Split, Splits, make_splits
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.elastic_sizes import Sizing, cut_to, prepare_sizes, renew_norms_
from edgecompress.pipeline.evaluate import accuracy
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Setting
from edgecompress.search.contract import shape_costs
from edgecompress.train.contract import MethodOptions, TrainMethod
from edgecompress.train.images import TrainingImages, parse_changes
from edgecompress.train.loop import TrainSettings, fit
from edgecompress.train.methods import decomposable, plain
from edgecompress.train.objectives import from_labels
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.schedules import parse_schedule

SHARES = (0.5, 0.25)
BATCH, WARMUP = 128, 0.05
SELECTION = 1000
"""Training images left out of training: the setting was tried out on them."""


@dataclass(frozen=True)
class Scene:
    """The trained network, its images, and the options of the command line."""

    loaded: LoadedModel
    splits: Splits
    options: argparse.Namespace

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        return self.loaded.ref.input_shape

    @property
    def judged(self) -> Split:
        """Images accuracy is told of."""
        report = self.splits.report
        return self.splits.selection if self.options.pilot or report is None else report


def main() -> None:
    """Prints a line per seed, way to train and size, then the table."""
    options = _options()
    if options.table:
        _print_table([json.loads(line) for line in options.table.read_text().splitlines()])
        return
    torch.set_num_threads(options.threads)
    rows = []
    for row in _rows(options):
        print(json.dumps(row | _machine()), flush=True)
        rows.append(row)
    _print_table(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cifar", help="CIFAR-10 in any form `edgecompress list data` names")
    parser.add_argument("--weights", help="checkpoint of zoo:resnet20")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mode", choices=("channel", "spatial"), default="spatial")
    parser.add_argument("--smallest", type=float, default=0.05)
    parser.add_argument("--largest", type=float, default=0.4)
    parser.add_argument("--share", type=float, default=0.5, help="weight of the low-rank loss")
    parser.add_argument("--low-rank-images", type=float, default=0.5, help="of a batch")
    parser.add_argument("--refresh", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--training-images", type=int, default=49_000)
    parser.add_argument("--norm-images", type=int, default=2048)
    parser.add_argument("--control", type=int, default=0, help="seeds to fine-tune without the second loss")
    parser.add_argument("--pilot", action="store_true", help="accuracy on training images left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", type=Path, help="only print the table of lines written before")
    return parser.parse_args()


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    loaded = load_model("zoo:resnet20", weights=options.weights)
    source = open_source(options.cifar, loaded.ref.preprocess)
    for seed in range(options.seeds):
        splits = make_splits(
            source, calibration=options.training_images, selection=SELECTION, report=None, seed=seed
        )
        scene = Scene(loaded, splits, options)
        yield from _sized(scene, loaded.module, {"network": "dense", "seed": seed})
        ways = [decomposable.METHOD, *([plain.METHOD] if seed < options.control else [])]
        for way in ways:
            network, told = _trained(scene, way, seed)
            yield from _sized(scene, network, {"network": way.name, "seed": seed, **told})


def _trained(scene: Scene, way: TrainMethod, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    options = scene.options
    images = TrainingImages(
        scene.splits.calibration, BATCH, parse_changes("crop4,flip", scene.shape[1:]), seed
    )
    settings = TrainSettings(
        steps=max(1, round(options.epochs * images.steps_per_epoch)),
        schedule=parse_schedule("cosine", warmup=WARMUP),
        optimiser_settings=OptimiserSettings(lr=options.lr, nesterov=True),
    )
    course = way.begin(copy.deepcopy(scene.loaded.module), _method_options(options, seed))
    begun = time.process_time()
    fitted = fit(course, from_labels(), images, settings)
    seconds = time.process_time() - begun
    told = {"steps": settings.steps, "cpu_s": round(seconds, 1), "loss": fitted.rows[-1].loss}
    return fitted.module, told


def _method_options(options: argparse.Namespace, seed: int) -> MethodOptions:
    return MethodOptions(
        mode=options.mode,
        smallest=options.smallest,
        largest=options.largest,
        low_rank_share=options.share,
        low_rank_images=options.low_rank_images,
        refresh=options.refresh,
        seed=seed,
    )


def _sized(scene: Scene, network: nn.Module, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row for the whole network, and one for each size it is cut to."""
    loaded = replace(scene.loaded, module=network)
    names = [name for name, one in network.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)]
    layers, unfit = find_layers(network, names, scene.shape)
    material = Material(loaded, layers, unfit, scene.splits)
    mode = scene.options.mode
    prepared = prepare_sizes(
        Setting(network, layers, shape_costs(material.totals)), Sizing(mode), NO_PROGRESS
    )
    told = told | {"mode": mode, "lr": scene.options.lr, "pilot": scene.options.pilot}
    yield told | {"share": 1.0, "macs": material.totals["macs"], "top1": _top1(scene, network)}
    for share in SHARES:
        _, small = cut_to(prepared, Budget(metric="macs", value=share, relative=True), NO_PROGRESS)
        kept = replace(
            scene.splits.calibration, indices=scene.splits.calibration.indices[: scene.options.norm_images]
        )
        norms = renew_norms_(small, kept, scene.shape)
        macs = total_macs(profile(small, scene.shape))
        yield told | {"share": share, "macs": macs, "norms": norms, "top1": _top1(scene, small)}


def _top1(scene: Scene, network: nn.Module) -> float:
    return accuracy(network, scene.judged, size=250, progress=NO_PROGRESS, what="").top1


def _machine() -> dict[str, Any]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    shares = sorted({row["share"] for row in rows}, reverse=True)
    heads = "".join(f" {share:g} x MACs |" for share in shares)
    lines = [f"| network | seeds |{heads}", f"|---|---|{'---|' * len(shares)}"]
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        cells = "".join(
            f" {_told([row['top1'] for row in own if row['share'] == share])} |" for share in shares
        )
        lines.append(f"| {name} | {len({row['seed'] for row in own})} |{cells}")
    print("\n".join(lines), file=sys.stderr)


def _told(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


if __name__ == "__main__":
    main()
