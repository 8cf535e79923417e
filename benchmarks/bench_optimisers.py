"""How much longer does a step of PUGD, SAM or ASAM take than one of SGD?

    python benchmarks/bench_optimisers.py > optimisers.jsonl
    python benchmarks/bench_optimisers.py --table optimisers.jsonl

A step is what a training loop does on a batch it already has: forward, backward and the optimiser. Images
and labels are random; the time does not depend on them. All optimisers take turns, in random order within a
round, each on a network of its own; ratios are trimmed means over rounds with a 99 % interval. Two passes
cost twice as much as one, whoever asks for them; `own_ms` is what a step takes besides, outside the closure.
It is small, so on a busy machine `by_parts` tells more: the ratio that follows from the median pass of all
optimisers together and the median rest of each. Prints a JSON line per network and optimiser.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from bench_search_cost import CLOCKS, measure, processor, ratio
from search_cost_cases import Subject
from torch import Tensor, nn

from edgecompress.core.plugins import discover
from edgecompress.nets.sources import load_model
from edgecompress.train import optimisers
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings

NETS = ("fashion_resnet", "resnet20")
CASES = ("sgd", "pugd", "sam", "asam")
GOAL = 2.1
"""Of PUGD, in steps of SGD."""


@dataclass(frozen=True)
class Stepper:
    """Steps of one optimiser on a network of its own, and the time of each inside and outside the closure."""

    optimizer: torch.optim.Optimizer
    passes: int
    closure: Callable[[], float]
    now: Callable[[], float]
    pass_ms: list[float] = field(default_factory=list)
    own_ms: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Takes a step."""
        inside: list[float] = []

        def timed() -> float:
            start = self.now()
            loss = self.closure()
            inside.append(1e3 * (self.now() - start))
            return loss

        start = self.now()
        self.optimizer.step(timed)
        self.own_ms.append(1e3 * (self.now() - start) - sum(inside))
        self.pass_ms.extend(inside)


def stepper(case: str, network: nn.Module, images: Tensor, labels: Tensor, clock: str) -> Stepper:
    """Returns one optimiser, ready to step."""
    own = copy.deepcopy(network).train()
    optimiser = discover(optimisers, Optimiser)[case]
    optimizer = optimiser.make(own, OptimiserSettings(lr=1e-3))

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(own(images), labels)
        torch.autograd.backward(loss)
        return float(loss.detach())

    return Stepper(optimizer, optimiser.passes, closure, CLOCKS[clock])


def rows(net: str, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measures a network and yields one line per optimiser."""
    loaded = load_model(f"zoo:{net}")
    images = torch.randn(options.batch, *loaded.ref.input_shape)
    labels = torch.randint(10, (options.batch,))
    steppers = {case: stepper(case, loaded.module, images, labels, options.clock) for case in CASES}
    subjects = {case: Subject(run=each.run) for case, each in steppers.items()}
    bursts = measure(subjects, options.rounds, options.seed, options.clock)
    pass_ms = median(ms for each in steppers.values() for ms in each.pass_ms)
    parts = {case: each.passes * pass_ms + median(each.own_ms) for case, each in steppers.items()}
    for case in CASES:
        samples = [burst.mean_ms for burst in bursts[case]]
        yield {
            "date": datetime.date.today().isoformat(),
            "machine": processor(),
            "threads": torch.get_num_threads(),
            "clock": options.clock,
            "load": round(os.getloadavg()[0], 1),
            "net": net,
            "batch": options.batch,
            "optimiser": case,
            "median_ms": round(median(samples), 2),
            "to_sgd": ratio(bursts["sgd"], bursts[case]),
            "own_ms": round(median(steppers[case].own_ms), 2),
            "by_parts": round(parts[case] / parts["sgd"], 3),
            "samples_ms": [round(ms, 2) for ms in samples],
        }


def table(path: Path) -> str:
    """Returns the figures as Markdown."""
    lines = [
        "| network, batch | optimiser | ms per step | outside the closure | time / SGD | by parts |",
        "|---|---|---|---|---|---|",
    ]
    for row in map(json.loads, path.read_text().splitlines()):
        times, low, high = row["to_sgd"]
        goal = f" (goal {GOAL})" if row["optimiser"] == "pugd" else ""
        cells = [f"{row['net']}, {row['batch']}", row["optimiser"], f"{row['median_ms']:.1f}"]
        cells += [
            f"{row['own_ms']:.1f}",
            f"{times:.2f} ({low:.2f}-{high:.2f})",
            f"{row['by_parts']:.2f}{goal}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, or shows what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", default=",".join(NETS), help="names of the zoo")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="cpu", help="cpu: for busy machines, 1 thread"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path, metavar="JSONL")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.table:
        print(table(args.table))
        return
    for net in args.nets.split(","):
        for row in rows(net, args):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
