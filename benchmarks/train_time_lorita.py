"""The part `lorita` of `bench_train_time.py`: weights as products of factors, and the singular values left.

A network of the zoo is trained with 1 (ordinary training), 2 and 3 factors per weight: the same images,
steps, learning rate and weight decay for all. Told are the singular values above 1 % of the largest of
their layer, summed over the layers whose weights were products (kernels read as outputs x the rest), the
accuracy of the merged network, and its accuracy when cut to shares of its MACs by LoRITa's own global
selection. Batch norms of networks that were cut are renewed on the same training images; nothing is trained
after a cut.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Literal

from torch import nn
from train_time_scene import WARMUP, Job, Row, Scene, first_images, make_scene, settings_of, top1, trained

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs
from edgecompress.nets.sources import build_module, load_model
from edgecompress.pipeline.elastic_sizes import renew_norms_
from edgecompress.pipeline.engine import compress_to
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.preparation import Recipe, prepare
from edgecompress.search.contract import shape_costs
from edgecompress.train.contract import MethodOptions
from edgecompress.train.factored import factorable
from edgecompress.train.loop import TrainSettings
from edgecompress.train.methods import lorita
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.ranks_used import ranks_used
from edgecompress.train.schedules import parse_schedule

NAMES = ("as it comes", "1 factor", "2 factors", "3 factors")
SHARES = (0.6, 0.4)
NORM_IMAGES = 512
CUT = Recipe(
    rank_selection="lorita-global", factors="plain", refit="none", local_search=False, batch_norm="keep"
)


@dataclass(frozen=True)
class Settings:
    """How long, by what and from where a network is trained."""

    model: str = "zoo:fashion_resnet"
    side: int = 28
    """Pixels of an image; trained weights know 28."""
    fresh: int = 0
    """1: from random weights, 0: from trained ones."""
    steps: int = 300
    batch: int = 32
    optimiser: str = "sgd"
    lr: float = 0.03
    schedule: str = "steps:0.6,0.8:0.03"
    """Weights shrink, so steps of one length turn them more and more: a cosine would fall too late."""
    weight_decay: float = 0.03
    start: Literal["balanced", "orthogonal"] = "balanced"
    images: int = 9600


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yields a job per seed and number of factors; with 0 of them there is no training."""
    settings = settings_of(options, "lorita", Settings())
    for seed in options.seeds:
        scene = cache(partial(_scene, options, settings, seed))
        for factors in range(1 if settings.fresh else 0, len(NAMES)):
            key = {"name": NAMES[factors], "seed": seed, "pilot": options.pilot, **asdict(settings)}
            yield Job(key, partial(_rows, scene, settings, factors))


def _scene(options: argparse.Namespace, settings: Settings, seed: int) -> Scene:
    loaded = load_model(settings.model, input_size=(settings.side, settings.side))
    return make_scene(options, loaded, options.fashion, settings.images, seed)


def _rows(scene: Callable[[], Scene], settings: Settings, factors: int) -> Iterator[Row]:
    here = scene()
    network, told = here.loaded.module, Row()
    if factors:
        network, told = _trained(here, settings, factors)
    products = {place.module for place in factorable(network)}
    ranks = [(used, whole) for name, used, whole in ranks_used(network) if name in products]
    yield told | {
        "values": sum(used for used, _ in ranks),
        "all_values": sum(whole for _, whole in ranks),
        "top1": top1(here, network),
        "cut": dict(_cuts(here, network)),
    }


def _trained(scene: Scene, settings: Settings, factors: int) -> tuple[nn.Module, Row]:
    loop = TrainSettings(
        steps=settings.steps,
        schedule=parse_schedule(settings.schedule, warmup=WARMUP),
        optimiser=settings.optimiser,
        optimiser_settings=OptimiserSettings(lr=settings.lr, weight_decay=settings.weight_decay),
        clip_norm=5.0,
    )
    loaded, seed = scene.loaded, scene.seed
    module = build_module(loaded.ref, seed=seed) if settings.fresh else copy.deepcopy(loaded.module)
    course = lorita.begin(module, MethodOptions(factors=factors, start=settings.start, seed=seed))
    return trained(scene, course, loop, batch=settings.batch, changes="none")


def _cuts(scene: Scene, network: nn.Module) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields MACs and accuracy at every share of MACs."""
    names = [place.module for place in factorable(network)]
    layers, unfit = find_layers(network, names, scene.shape)
    material = Material(replace(scene.loaded, module=network), layers, unfit, scene.splits)
    prepared = prepare(material.setting(shape_costs(material.totals)), CUT, NO_PROGRESS)
    for share in SHARES:
        small = compress_to(prepared, "macs", share * material.totals["macs"], NO_PROGRESS).module
        renew_norms_(small, first_images(scene.splits.calibration, NORM_IMAGES), scene.shape)
        macs = total_macs(profile(small, scene.shape)) / material.totals["macs"]
        yield f"{share:g}", {"macs": round(macs, 4), "top1": top1(scene, small)}
