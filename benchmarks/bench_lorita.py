"""Does training weights as products of factors (LoRITa) leave fewer singular values at equal accuracy?

    python benchmarks/bench_lorita.py --data fashion-mnist:DIR --seeds 3 > lorita.jsonl

A network of the zoo is trained with 1 (ordinary training), 2 and 3 factors per weight: the same images,
steps, learning rate and weight decay for all. Told are the singular values above 1 % of the largest of
their layer, summed over the layers whose weights were products (kernels read as outputs x the rest), the
accuracy of the merged network, and its accuracy when cut to shares of its MACs by LoRITa's own global
selection. Batch norms of networks that were cut are renewed on the same training images; nothing is trained
after a cut. `--fresh` starts from random weights instead of trained ones.

`--pilot` tells accuracy on training images that were left out, to try out settings on; without it all is
told of test images. One JSON object per line on stdout, a table in Markdown at the end on stderr; `--table
FILE` makes the table from such lines again.
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
from edgecompress.data.sources import open_source
from edgecompress.data.splits import Split, Splits, make_splits
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs
from edgecompress.nets.sources import LoadedModel, build_module, load_model
from edgecompress.pipeline.elastic_sizes import renew_norms_
from edgecompress.pipeline.engine import compress_to
from edgecompress.pipeline.evaluate import accuracy
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Recipe, prepare
from edgecompress.search.contract import shape_costs
from edgecompress.train.contract import MethodOptions
from edgecompress.train.factored import factorable
from edgecompress.train.images import TrainingImages, parse_changes
from edgecompress.train.loop import TrainSettings, fit
from edgecompress.train.methods import lorita
from edgecompress.train.objectives import from_labels
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.ranks_used import ranks_used
from edgecompress.train.schedules import parse_schedule

WARMUP = 0.05
SELECTION = 2000
"""Training images left out of training: the setting was tried out on them."""
NORM_IMAGES = 512
CUT = Recipe(
    rank_selection="lorita-global", factors="plain", refit="none", local_search=False, batch_norm="keep"
)


@dataclass(frozen=True)
class Scene:
    """A network, its images, and the options of the command line."""

    loaded: LoadedModel
    splits: Splits
    options: argparse.Namespace
    seed: int

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
    """Prints a line per seed and number of factors, then the table."""
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
    parser.add_argument("--data", help="images in any form `edgecompress list data` names")
    parser.add_argument("--model", default="zoo:fashion_resnet")
    parser.add_argument("--fresh", action="store_true", help="start from random weights")
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--optimizer", choices=("sgd", "adam-l2"), default="sgd")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=1e-2)
    parser.add_argument("--start", choices=("balanced", "orthogonal"), default="balanced")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.6, 0.4], help="of MACs to cut to")
    parser.add_argument("--report", type=int, default=2000, help="test images")
    parser.add_argument("--pilot", action="store_true", help="accuracy on training images left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", type=Path, help="only print the table of lines written before")
    return parser.parse_args()


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    loaded = load_model(options.model)
    source = open_source(options.data or loaded.data or "", loaded.ref.preprocess)
    for seed in options.seeds:
        splits = make_splits(
            source,
            calibration=min(options.steps * options.batch, 58_000),
            selection=SELECTION,
            report=options.report,
            seed=seed,
        )
        scene = Scene(loaded, splits, options, seed)
        if not options.fresh:
            yield {"network": "as it comes", "seed": seed} | _told(scene, loaded.module)
        for factors in options.factors:
            network, how = _trained(scene, factors)
            yield {"network": f"{factors} factors", "seed": seed} | how | _told(scene, network)


def _trained(scene: Scene, factors: int) -> tuple[nn.Module, dict[str, Any]]:
    options, seed = scene.options, scene.seed
    images = TrainingImages(
        scene.splits.calibration, options.batch, parse_changes("none", scene.shape[1:]), seed
    )
    rates = OptimiserSettings(lr=options.lr, weight_decay=options.weight_decay)
    settings = TrainSettings(
        steps=options.steps,
        schedule=parse_schedule("cosine", warmup=WARMUP),
        optimiser=options.optimizer,
        optimiser_settings=rates,
        clip_norm=5.0,
    )
    module = build_module(scene.loaded.ref, seed=seed) if options.fresh else scene.loaded.module
    method = MethodOptions(factors=factors, start=options.start, seed=seed)
    course = lorita.begin(copy.deepcopy(module), method)
    begun = time.process_time()
    fitted = fit(course, from_labels(), images, settings)
    return fitted.module, {
        "cpu_s": round(time.process_time() - begun, 1),
        "loss": fitted.rows[-1].loss,
        **{name: getattr(options, name) for name in ("steps", "batch", "lr", "weight_decay", "start")},
    }


def _told(scene: Scene, network: nn.Module) -> dict[str, Any]:
    factored = {place.module for place in factorable(network)}
    ranks = [(used, whole) for name, used, whole in ranks_used(network) if name in factored]
    return {
        "model": scene.loaded.ref.source,
        "values": sum(used for used, _ in ranks),
        "all_values": sum(whole for _, whole in ranks),
        "pilot": scene.options.pilot,
        "top1": _top1(scene, network),
        "cut": dict(_cuts(scene, network)),
    }


def _cuts(scene: Scene, network: nn.Module) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields MACs and accuracy at every share of MACs."""
    loaded = replace(scene.loaded, module=network)
    names = [place.module for place in factorable(network)]
    layers, unfit = find_layers(network, names, scene.shape)
    material = Material(loaded, layers, unfit, scene.splits)
    prepared = prepare(material.setting(shape_costs(material.totals)), CUT, NO_PROGRESS)
    training = scene.splits.calibration
    kept = replace(training, indices=training.indices[:NORM_IMAGES])
    for share in scene.options.shares:
        small = compress_to(prepared, "macs", share * material.totals["macs"], NO_PROGRESS).module
        renew_norms_(small, kept, scene.shape)
        macs = total_macs(profile(small, scene.shape)) / material.totals["macs"]
        yield f"{share:g}", {"macs": round(macs, 4), "top1": _top1(scene, small)}


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
    shares = list(rows[0]["cut"])
    heads = "".join(f" {share} x MACs |" for share in shares)
    lines = [f"| network | seeds | values > 1 % of {rows[0]['all_values']} | top-1 |{heads}"]
    lines.append(f"|---|---|---|---|{'---|' * len(shares)}")
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        columns = [[row["values"] for row in own], [row["top1"] for row in own]]
        columns += [[row["cut"][share]["top1"] for row in own] for share in shares]
        seeds = len({row["seed"] for row in own})
        lines.append(f"| {name} | {seeds} | {' | '.join(map(_mean, columns))} |")
    print("\n".join(lines), file=sys.stderr)


def _mean(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


if __name__ == "__main__":
    main()
