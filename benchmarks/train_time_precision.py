"""The part `precision` of `bench_train_time.py`: how long a step takes in float32, and in bfloat16.

A step is what `edgecompress recover` does on a batch it already has: the dense network's answers, forward,
backward and AdamW. Both take turns, in random order within a round, each on a network of its own; the ratio
is a trimmed mean over rounds with a 99 % interval.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import get_args

import torch
from bench_search_cost import measure, ratio
from search_cost_cases import Subject
from torch import nn
from train_time_scene import Job, Row, settings_of

from edgecompress.nets.sources import load_model
from edgecompress.train.contract import Batch, Objective, backward_once
from edgecompress.train.objectives import Precision, Teaching, at_precision, from_teacher

NETS = {"resnet20": 64, "efficientnet_lite0": 16}
"""Images of a step."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True)
class Settings:
    """Rounds, and whose time is taken."""

    rounds: int = 15
    clock: str = "cpu"
    """Or `wall`; `cpu` is for busy machines."""
    seed: int = 0


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yields a job per network."""
    settings = settings_of(options, "precision", Settings())
    for net in NETS:
        yield Job({"name": net, **asdict(settings)}, partial(_rows, net, settings))


def _rows(net: str, settings: Settings) -> Iterator[Row]:
    """Measures a network and yields a row per precision."""
    torch.manual_seed(settings.seed)
    loaded = load_model(f"zoo:{net}")
    dense = loaded.module.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(NETS[net], *loaded.ref.input_shape)
    batch = Batch(images, None, len(images), 0)
    subjects: dict[str, Subject] = {one: Subject(run=_stepper(dense, batch, one)) for one in PRECISIONS}
    bursts = measure(subjects, settings.rounds, settings.seed, settings.clock)
    for one in PRECISIONS:
        samples = [burst.mean_ms for burst in bursts[one]]
        yield {
            "precision": one,
            "images": len(images),
            "median_ms": round(median(samples), 2),
            "to_float32": ratio(bursts["float32"], bursts[one]),
            "samples_ms": [round(ms, 2) for ms in samples],
        }


def _stepper(dense: nn.Module, batch: Batch, precision: Precision) -> partial[None]:
    network = copy.deepcopy(dense).requires_grad_(True)
    objective = at_precision(from_teacher(dense, Teaching()), precision)
    return partial(_step, network, torch.optim.AdamW(network.parameters(), lr=1e-6), objective, batch)


def _step(network: nn.Module, optimiser: torch.optim.Optimizer, objective: Objective, batch: Batch) -> None:
    optimiser.zero_grad()
    backward_once(network, objective, batch)
    optimiser.step()
