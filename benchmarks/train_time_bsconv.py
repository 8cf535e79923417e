"""The part `bsconv` of `bench_train_time.py`: blueprint separable convolutions in place of ordinary ones.

The embedded convolutional network is trained from random weights, as it is, with BSConv-U and BSConv-S in
place of its 3 x 3 convolutions, and with ordinary depthwise separable ones (depthwise, then 1 x 1): the same
images, steps and schedule for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial

import torch
from torch import nn
from train_time_scene import WARMUP, Job, Row, Scene, make_scene, settings_of, top1, trained

from edgecompress.nets.modules import replace_
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import build_module, load_model
from edgecompress.train.blueprints import convolutions, is_replaced
from edgecompress.train.contract import Course, MethodOptions
from edgecompress.train.loop import TrainSettings
from edgecompress.train.methods import bsconv_s, bsconv_u, plain
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.schedules import parse_schedule

RATES = (0.05, 0.15, 0.45)
"""Tried for every kind of network on images left out of training."""


@dataclass(frozen=True)
class Settings:
    """How long and by what all are trained."""

    model: str = "zoo:fashion_resnet"
    side: int = 14
    """Pixels of an image; 28 are twice as slow."""
    steps: int = 150
    batch: int = 32
    weight_decay: float = 5e-4
    middle: float = 0.25
    orthonormal: float = 0.1
    images: int = 4800


def depthwise_separable(network: nn.Module, options: MethodOptions) -> Course:
    """Returns the course of a network with ordinary separable convolutions where BSConv would be."""
    for layer in [one for one in convolutions(network, options) if is_replaced(one, options)]:
        op = layer.op
        depthwise = nn.Conv2d(
            op.inputs,
            op.inputs,
            op.kernel,
            stride=op.stride,
            padding=op.padding,
            groups=op.inputs,
            bias=False,
        )
        pointwise = nn.Conv2d(op.inputs, op.outputs, 1, bias=op.bias)
        replace_(network, layer.name, nn.Sequential(depthwise, pointwise))
    return plain.METHOD.begin(network, options)


KINDS: dict[str, tuple[Callable[[nn.Module, MethodOptions], Course], float]] = {
    "plain": (plain.METHOD.begin, 0.15),
    "depthwise separable": (depthwise_separable, 0.15),
    "bsconv-u": (bsconv_u.METHOD.begin, 0.15),
    "bsconv-s": (bsconv_s.METHOD.begin, 0.15),
}
"""How each begins, and the best of `RATES`."""


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yields a job per seed and kind of network; a pilot tries all rates."""
    settings = settings_of(options, "bsconv", Settings())
    for seed in options.seeds:
        scene = cache(partial(_scene, options, settings, seed))
        for kind, (_, best) in KINDS.items():
            for lr in RATES if options.pilot else (best,):
                key = {"name": kind, "lr": lr, "seed": seed, "pilot": options.pilot, **asdict(settings)}
                yield Job(key, partial(_rows, scene, settings, kind, lr))


def _scene(options: argparse.Namespace, settings: Settings, seed: int) -> Scene:
    loaded = load_model(settings.model, input_size=(settings.side, settings.side))
    return make_scene(options, loaded, options.fashion, settings.images, seed)


def _rows(scene: Callable[[], Scene], settings: Settings, kind: str, lr: float) -> Iterator[Row]:
    here = scene()
    torch.manual_seed(here.seed)  # layers that are made outside a course start from it
    method = MethodOptions(
        middle=settings.middle, orthonormal=settings.orthonormal, seed=here.seed, input_shape=here.shape
    )
    course = KINDS[kind][0](build_module(here.loaded.ref, seed=here.seed), method)
    loop = TrainSettings(
        steps=settings.steps,
        schedule=parse_schedule("cosine", warmup=WARMUP),
        optimiser_settings=OptimiserSettings(lr=lr, weight_decay=settings.weight_decay),
        clip_norm=5.0,
    )
    network, told = trained(here, course, loop, batch=settings.batch, changes="crop2,flip")
    costs = {"params": total_params(network), "macs": total_macs(profile(network, here.shape))}
    yield told | costs | {"top1": top1(here, network)}
