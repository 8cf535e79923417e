"""How far off are milliseconds predicted for networks with fewer channels and dimensions?

    python benchmarks/bench_narrowed_latency.py --latency pixel4.json > narrowed.jsonl
    python benchmarks/bench_narrowed_latency.py --models zoo:fashion_vit --networks 30 --least 0.25

Narrows each model at random, exports it whole and times it on the device of the table. None of these networks
was used to build the table. Widths of groups are drawn evenly from `--least` of the units to all of them, in
steps of `--multiple`. Prints a JSON line per model.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from torch import nn

from edgecompress.core.types import Group
from edgecompress.devices.contract import Options
from edgecompress.latency.calibration import BlockSum, agreement, plan_timing
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.dimension_groups import find_dimension_groups
from edgecompress.nets.narrowing import narrow_
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.nets.width_groups import find_width_groups
from edgecompress.pipeline.latency_costs import read_clock
from edgecompress.pipeline.latency_files import read_table, table_heading
from edgecompress.pipeline.latency_networks import write_network
from edgecompress.pipeline.latency_work import Bench, find_place, open_bench
from edgecompress.pipeline.narrowed_costs import narrowed_ms, shapes_of


def main() -> None:
    """Prints a line per model."""
    options = _options()
    bench = _bench(options.latency)
    for model in options.models:
        print(json.dumps(_row(bench, model, options) | _circumstances()), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency", default="pixel4.json", metavar="TABLE")
    parser.add_argument("--models", nargs="+", default=["zoo:fashion_resnet", "zoo:fashion_vit"])
    parser.add_argument("--networks", type=int, default=10, help="how many of each model")
    parser.add_argument("--least", type=float, default=0.1, help="share of units that stays in any case")
    parser.add_argument("--multiple", type=int, default=1, help="of which all widths are")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _circumstances() -> dict[str, object]:
    machine = f"{os.cpu_count()}-core {platform.machine()}"
    return {"machine": machine, "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def _bench(name: str) -> Bench:
    table = read_table(name)
    conditions = table.conditions
    options = Options(threads=conditions.threads, cores=conditions.cores, clean=True)
    place = find_place(table.device, table.format, options)
    return open_bench(place, table.format, table.dtype, begun=table_heading(table), seed=0)


def _row(bench: Bench, source: str, options: argparse.Namespace) -> dict[str, object]:
    loaded = load_model(source)
    clock = read_clock(options.latency, loaded, ())
    model, shape = loaded.module.eval(), loaded.ref.input_shape
    rewrite_attention_(model, shape)
    groups = _groups(model, shape)
    predict = narrowed_ms(clock, shapes_of(model, shape), groups)
    rng = random.Random(f"{source} {options.seed}")
    drawn = [_drawn(rng, groups, options) for _ in range(options.networks)]
    named = {f"{number}": widths for number, widths in enumerate(drawn)}
    measured = _measured(bench, loaded, groups, drawn)
    nothing = BlockSum(0.0, 0.0)
    timings = [
        plan_timing(name, nothing, ms, predict(widths), fitted=False)
        for (name, widths), ms in zip(named.items(), measured, strict=True)
    ]
    found = agreement(timings)
    return {
        "model": source,
        "table": Path(options.latency).name,
        "networks": found.plans,
        "groups": len(groups),
        "dense_ms": round(predict.dense, 3),
        "ms": [round(min(measured), 3), round(max(measured), 3)],
        "mean_error": round(found.mean_error, 4),
        "worst_error": round(found.worst_error, 4),
        "bias": round(sum(one.error for one in timings) / len(timings), 4),
        "rank_correlation": found.rank_correlation,
        "notes": list(predict.notes),
    }


def _groups(model: nn.Module, shape: tuple[int, int, int]) -> tuple[Group, ...]:
    """Returns dimensions of transformers, else channels of convolutional networks."""
    dimensions, _ = find_dimension_groups(model, shape)
    return dimensions or find_width_groups(model, shape).groups


def _drawn(rng: random.Random, groups: Sequence[Group], options: argparse.Namespace) -> dict[str, int]:
    drawn = {}
    for group in groups:
        least, step = max(1, round(options.least * group.width)), options.multiple
        choices = [width for width in range(least, group.width + 1) if width % step == 0]
        drawn[group.name] = rng.choice(choices or [group.width])
    return drawn


def _measured(
    bench: Bench, loaded: LoadedModel, groups: Sequence[Group], drawn: Sequence[dict[str, int]]
) -> list[float]:
    heading = bench.heading

    def write(widths: dict[str, int], file: Path) -> None:
        model = copy.deepcopy(loaded.module)
        narrow_(model, groups, {name: range(width) for name, width in widths.items()})
        write_network(model, loaded.ref, heading.format, heading.dtype, file)

    timings = dict(bench.timings([partial(write, widths) for widths in drawn]))
    return [timings[position].median_ms for position in range(len(drawn))]


if __name__ == "__main__":
    main()
