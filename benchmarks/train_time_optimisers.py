"""The part `optimisers` of `bench_train_time.py`: accuracy after as many passes with PUGD, SAM, ASAM and SGD.

The embedded convolutional network is trained from random weights. A pass is forward and backward on a batch.
Training ends after a number of passes, the same for all, and the learning rate falls as a cosine over passes
as well: optimisers with two passes take half of the steps. For schedules and triggers training is cut into
`SLICES` epochs of equally many passes. A pilot tries the same learning rates for all kinds of optimisers on
images left out of training; schedules and triggers of PUGD take what was best for PUGD.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from statistics import fmean

import torch
from torch import nn
from train_time_scene import WARMUP, Job, Row, Scene, make_scene, settings_of, top1

from edgecompress.core.plugins import discover
from edgecompress.nets.sources import build_module, load_model
from edgecompress.train import optimisers
from edgecompress.train.contract import Batch, backward_once
from edgecompress.train.images import TrainingImages, parse_changes
from edgecompress.train.objectives import from_labels
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings, begin_epoch, end_epoch
from edgecompress.train.schedules import parse_schedule

RATES = (0.01, 0.03, 0.1, 0.3)
SLICES = 10


@dataclass(frozen=True)
class Case:
    """An optimiser with its options, and the best of `RATES` for it."""

    optimiser: str
    lr: float
    radius: str | None = None
    scale: str | None = None
    timing: str = "none"
    is_tuned: bool = False
    """Whether a pilot tries it."""


FALLING = "cos:1.5:0.5"
PUGD_RATE = 0.03
CASES = {
    "sgd": Case("sgd", 0.03, is_tuned=True),
    "sam": Case("sam", 0.03, is_tuned=True),
    "asam": Case("asam", 0.03, is_tuned=True),
    "pugd": Case("pugd", PUGD_RATE, is_tuned=True),
    "pugd, radius": Case("pugd", PUGD_RATE, radius=FALLING),
    "pugd, timing": Case("pugd", PUGD_RATE, timing="variance"),
    "pugd, all three": Case("pugd", PUGD_RATE, FALLING, FALLING, "variance"),
}


@dataclass(frozen=True)
class Settings:
    """How long and on what all are trained."""

    model: str = "zoo:fashion_resnet"
    side: int = 14
    """Pixels of an image; 28 are twice as slow."""
    passes: int = 150
    batch: int = 32
    weight_decay: float = 5e-4
    images: int = 1600


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yields a job per seed and case; a pilot tries all rates."""
    settings = settings_of(options, "optimisers", Settings())
    for seed in options.seeds:
        scene = cache(partial(_scene, options, settings, seed))
        for name, case in CASES.items():
            if options.pilot and not case.is_tuned:
                continue
            for lr in RATES if options.pilot else (case.lr,):
                key = {"name": name, "lr": lr, "seed": seed, "pilot": options.pilot, **asdict(settings)}
                yield Job(key, partial(_rows, scene, settings, case, lr))


def _scene(options: argparse.Namespace, settings: Settings, seed: int) -> Scene:
    loaded = load_model(settings.model, input_size=(settings.side, settings.side))
    return make_scene(options, loaded, options.fashion, settings.images, seed)


def _rows(scene: Callable[[], Scene], settings: Settings, case: Case, lr: float) -> Iterator[Row]:
    here = scene()
    network = build_module(here.loaded.ref, seed=here.seed)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on a CPU
    asked = OptimiserSettings(
        lr=lr,
        weight_decay=settings.weight_decay,
        radius=case.radius,
        scale=case.scale,
        timing=case.timing,
    )
    optimizer = discover(optimisers, Optimiser)[case.optimiser].make(network, asked)
    changes = parse_changes("crop2,flip", here.shape[1:])
    images = TrainingImages(here.splits.calibration, settings.batch, changes, here.seed)
    told = train_(network, optimizer, images, settings.passes)
    yield told | {"top1": top1(here, network)}


@dataclass
class Passes:
    """How many passes a training may take, and how many it took."""

    allowed: int
    used: int = 0

    @property
    def share(self) -> float:
        """Of those allowed."""
        return self.used / self.allowed


def train_(network: nn.Module, optimizer: torch.optim.Optimizer, images: TrainingImages, allowed: int) -> Row:
    """Trains until so many passes are over, and tells how that went."""
    schedule, passes = parse_schedule("cosine", warmup=WARMUP), Passes(allowed)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    slices, losses, step, begun = 0, list[float](), 0, time.process_time()
    network.train()
    while passes.share < 1:
        begin_epoch(optimizer, SLICES * passes.share, SLICES)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule.share(passes.share)
        losses.append(optimizer.step(_closure(network, optimizer, images.batch(step), passes)))
        step += 1
        if SLICES * passes.share >= slices + 1:
            end_epoch(optimizer, fmean(losses), None)
            slices, losses = slices + 1, []
    return {"steps": step, "passed": passes.used, "cpu_s": round(time.process_time() - begun, 1)}


def _closure(
    network: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, passes: Passes
) -> Callable[[], float]:
    objective = from_labels()

    def closure() -> float:
        passes.used += 1
        optimizer.zero_grad()
        return float(backward_once(network, objective, batch))

    return closure
