"""The part `step` of `bench_train_time.py`: how long a step of PUGD, SAM or ASAM takes, and one of SGD.

A step is what a training loop does on a batch it already has: forward, backward and the optimiser. Images
and labels are random; the time does not depend on them. All optimisers take turns, in random order within a
round, each on a network of its own; ratios are trimmed means over rounds with a 99 % interval. Two passes
cost twice as much as one, whoever asks for them; `own_ms` is what a step takes besides, outside the closure.
It is small, so on a busy machine `by_parts` tells more: the ratio that follows from the median pass of all
optimisers together and the median rest of each.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from bench_search_cost import CLOCKS, measure, ratio
from search_cost_cases import Subject
from torch import Tensor, nn
from train_time_scene import Job, Row, settings_of

from edgecompress.core.plugins import discover
from edgecompress.nets.sources import load_model
from edgecompress.train import optimisers
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings

NETS = ("fashion_resnet", "resnet20")
CASES = ("sgd", "pugd", "sam", "asam")


@dataclass(frozen=True)
class Settings:
    """Images of a step, rounds, and whose time is taken."""

    batch: int = 32
    rounds: int = 15
    clock: str = "cpu"
    """Or `wall`; `cpu` is for busy machines."""
    seed: int = 0


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


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yields a job per network."""
    settings = settings_of(options, "step", Settings())
    for net in NETS:
        yield Job({"name": net, **asdict(settings)}, partial(_rows, net, settings))


def _rows(net: str, settings: Settings) -> Iterator[Row]:
    """Measures a network and yields one row per optimiser."""
    torch.manual_seed(settings.seed)
    loaded = load_model(f"zoo:{net}")
    images = torch.randn(settings.batch, *loaded.ref.input_shape)
    labels = torch.randint(10, (settings.batch,))
    steppers = {case: stepper(case, loaded.module, images, labels, settings.clock) for case in CASES}
    subjects = {case: Subject(run=each.run) for case, each in steppers.items()}
    bursts = measure(subjects, settings.rounds, settings.seed, settings.clock)
    pass_ms = median(ms for each in steppers.values() for ms in each.pass_ms)
    parts = {case: each.passes * pass_ms + median(each.own_ms) for case, each in steppers.items()}
    for case in CASES:
        samples = [burst.mean_ms for burst in bursts[case]]
        yield {
            "optimiser": case,
            "median_ms": round(median(samples), 2),
            "to_sgd": ratio(bursts["sgd"], bursts[case]),
            "own_ms": round(median(steppers[case].own_ms), 2),
            "by_parts": round(parts[case] / parts["sgd"], 3),
            "samples_ms": [round(ms, 2) for ms in samples],
        }
