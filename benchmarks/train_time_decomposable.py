"""The part `decomposable` of `bench_train_time.py`: a network cut to low ranks, after training for it.

ResNet-20 on CIFAR-10. The trained network is fine-tuned with the joint loss, then cut to shares of its MACs
by its global singular values; the network it started from is cut the same way, and so is one that was
fine-tuned for as many steps without the second loss. Batch norms of all are renewed on the same training
images. Nothing is retrained after a cut.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial

from torch import nn
from train_time_scene import WARMUP, Job, Row, Scene, first_images, make_scene, settings_of, top1, trained

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.types import Budget
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.elastic_sizes import Sizing, cut_to, prepare_sizes, renew_norms_
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Setting
from edgecompress.search.contract import shape_costs
from edgecompress.train.contract import MethodOptions, TrainMethod
from edgecompress.train.loop import TrainSettings
from edgecompress.train.methods import decomposable, plain
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.schedules import parse_schedule
from edgecompress.train.truncation import Mode

SHARES = (0.5, 0.25)
WAYS = {"dense": None, "decomposable": decomposable.METHOD, "plain": plain.METHOD}
"""The network as it comes, and two ways to fine-tune it."""


@dataclass(frozen=True)
class Settings:
    """How long and by what ResNet-20 is fine-tuned; of how many training images norms are renewed."""

    steps: int = 1000
    batch: int = 64
    lr: float = 0.01
    mode: Mode = "spatial"
    smallest: float = 0.05
    largest: float = 0.4
    share: float = 0.5
    low_rank_images: float = 0.5
    refresh: int = 10
    norm_images: int = 2048
    images: int = 48_000


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yields a job per seed and way to train."""
    settings = settings_of(options, "decomposable", Settings())
    for seed in options.seeds:
        scene = cache(partial(_scene, options, settings, seed))
        for name, way in WAYS.items():
            key = {"name": name, "seed": seed, "pilot": options.pilot, **asdict(settings)}
            yield Job(key, partial(_rows, scene, settings, way))


def _scene(options: argparse.Namespace, settings: Settings, seed: int) -> Scene:
    loaded = load_model("zoo:resnet20", weights=options.resnet20_weights)
    return make_scene(options, loaded, options.cifar, settings.images, seed)


def _rows(scene: Callable[[], Scene], settings: Settings, way: TrainMethod | None) -> Iterator[Row]:
    here = scene()
    network, told = here.loaded.module, Row()
    if way is not None:
        network, told = _trained(here, settings, way)
    for row in _sized(here, network, settings):
        yield row | told


def _trained(scene: Scene, settings: Settings, way: TrainMethod) -> tuple[nn.Module, Row]:
    method = MethodOptions(
        mode=settings.mode,
        smallest=settings.smallest,
        largest=settings.largest,
        low_rank_share=settings.share,
        low_rank_images=settings.low_rank_images,
        refresh=settings.refresh,
        seed=scene.seed,
    )
    loop = TrainSettings(
        steps=settings.steps,
        schedule=parse_schedule("cosine", warmup=WARMUP),
        optimiser_settings=OptimiserSettings(lr=settings.lr, nesterov=True),
    )
    course = way.begin(copy.deepcopy(scene.loaded.module), method)
    return trained(scene, course, loop, batch=settings.batch, changes="crop4,flip")


def _sized(scene: Scene, network: nn.Module, settings: Settings) -> Iterator[Row]:
    """Yields a row for the whole network, and one for each size it is cut to."""
    names = [name for name, one in network.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)]
    layers, unfit = find_layers(network, names, scene.shape)
    totals = Material(replace(scene.loaded, module=network), layers, unfit, scene.splits).totals
    setting = Setting(network, layers, shape_costs(totals))
    prepared = prepare_sizes(setting, Sizing(settings.mode), NO_PROGRESS)
    yield {"macs_share": 1.0, "macs": totals["macs"], "top1": top1(scene, network)}
    for share in SHARES:
        _, small = cut_to(prepared, Budget(metric="macs", value=share, relative=True), NO_PROGRESS)
        norms = renew_norms_(small, first_images(scene.splits.calibration, settings.norm_images), scene.shape)
        macs = total_macs(profile(small, scene.shape))
        yield {"macs_share": share, "macs": macs, "norms": norms, "top1": top1(scene, small)}
