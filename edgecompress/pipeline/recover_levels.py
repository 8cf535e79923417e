"""The levels of a recovery, from setting means right to training on labels: one function each.

A level gets a network of its own and returns what it made of it. Whether that is kept is not its business.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgecompress import factors
from edgecompress.core.plugins import discover
from edgecompress.errors import DataError
from edgecompress.factors.batch_norm import correct_statistics_
from edgecompress.factors.contract import Factors
from edgecompress.factors.repair import Which, repair_
from edgecompress.nets.metric import PLAIN, LayerMetric
from edgecompress.pipeline.recover_scene import Attempt, Scene, kept_attempt
from edgecompress.pipeline.recover_synthetic import synthetic_images
from edgecompress.pipeline.recover_training import trained
from edgecompress.train.norm_statistics import has_statistics

PLENTY = 4096
"""Images from which statistics of batch norms are better measured anew than corrected."""
MOST_COUNTED = 8192
"""More do not change statistics."""
MIMIC_IMAGES = 1024


@dataclass(frozen=True)
class Level:
    """One way to win accuracy back."""

    name: str
    summary: str
    needs_labels: bool
    needs_images: bool
    """Real ones."""
    run: Callable[[Scene, nn.Module], Attempt]
    """Takes a network, which becomes the level's to change, to what it makes of it.

    Raises EdgeCompressError where the level cannot work on this network or these images."""
    share: float = 0.0
    """Of the minutes; 0: it trains nothing."""


def none(scene: Scene, network: nn.Module) -> Attempt:
    """Leaves the network as it is."""
    return Attempt(network, "as it came", changed=False)


def stats(scene: Scene, network: nn.Module) -> Attempt:
    """Sets means right, in biases and batch norms, and corrects or measures the statistics of the latter."""
    return kept_attempt(scene.memo, "stats", network, lambda: _stats(scene, network))


def _stats(scene: Scene, network: nn.Module) -> Attempt:
    tried = list(_statistics(scene, network))
    if not tried:
        return Attempt(network, "nothing to correct: no compressed layer, no batch norm", changed=False)
    return max(tried, key=lambda one: scene.judge.likeness(one.module))


def _statistics(scene: Scene, network: nn.Module) -> Iterator[Attempt]:
    """Yields networks with other statistics, to choose from."""
    batches = scene.few(scene.waiting)
    if any(layer.name not in scene.rows for layer in scene.layers):
        shifted = copy.deepcopy(network)
        _repair_(scene, shifted, batches, "none", {})
        yield Attempt(shifted, f"means set right on {_count(batches)} images")
    norms = sum(isinstance(one, nn.BatchNorm2d) and has_statistics(one) for one in network.modules())
    if norms and _can_be_paired(scene, network):
        corrected = copy.deepcopy(network)
        correct_statistics_(corrected, scene.dense, batches, narrowed=scene.rows)
        yield Attempt(corrected, f"{norms} batch norms corrected on {_count(batches)} images")
    if norms and len(scene.splits.calibration) >= PLENTY:
        counted = scene.few(MOST_COUNTED)
        measured = copy.deepcopy(network)
        remeasure_norms_(measured, counted)
        yield Attempt(measured, f"{norms} batch norms measured anew on {_count(counted)} images")


def _can_be_paired(scene: Scene, network: nn.Module) -> bool:
    """Tells whether every batch norm has a counterpart in the dense network whose rows are known."""
    known = dict(scene.dense.named_modules())
    for name, one in network.named_modules():
        if isinstance(one, nn.BatchNorm2d):
            other = known.get(name)
            rows = scene.rows.get(name)
            if not isinstance(other, nn.BatchNorm2d):
                return False
            if one.num_features != (other.num_features if rows is None else len(rows)):
                return False
    return True


@torch.no_grad()
def remeasure_norms_(network: nn.Module, batches: Sequence[Tensor]) -> None:
    """Gives every batch norm the statistics of its inputs on these images."""
    norms = [one for one in network.modules() if isinstance(one, _BatchNorm) and has_statistics(one)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # all batches count alike
        norm.train()
    for batch in batches:
        network(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def refit(scene: Scene, network: nn.Module) -> Attempt:
    """Fits compressed layers to the dense ones' outputs, first to last, by least squares."""
    if not scene.layers:
        return Attempt(network, "nothing to fit: no compressed layer is known", changed=False)
    return kept_attempt(scene.memo, "refit", network, lambda: _refit(scene, network))


def _refit(scene: Scene, network: nn.Module) -> Attempt:
    batches = scene.few(scene.waiting)
    blocks = [layer for layer in scene.layers if layer.name in scene.choices]
    aware = discover(factors, Factors)["aware"]
    metrics = dict(aware.metrics(scene.dense, blocks, batches, scene.seed, scene.progress)) if blocks else {}
    _repair_(scene, network, batches, "both", metrics)
    return Attempt(network, f"{len(scene.layers)} layers fitted on {_count(batches)} images")


def _repair_(
    scene: Scene, network: nn.Module, batches: Sequence[Tensor], which: Which, metrics: dict[str, LayerMetric]
) -> None:
    fits = which != "none"  # of narrowed layers means alone cannot be set right
    repair_(
        network,
        scene.dense,
        [layer for layer in scene.layers if fits or layer.name not in scene.rows],
        {name: one for name, one in scene.choices.items() if name not in scene.rows},
        batches,
        {name: metrics.get(name, PLAIN) for name in scene.choices},
        which=which,
        seed=scene.seed,
        progress=scene.progress,
        narrowed=scene.rows,
    )


def mimic(scene: Scene, network: nn.Module) -> Attempt:
    """Trains compressed layers to put out what dense ones do, on a few images."""
    return trained(scene, "mimic", network, scene.splits.calibration, most=MIMIC_IMAGES)


def synthetic(scene: Scene, network: nn.Module) -> Attempt:
    """Trains as `mimic` does, on images made from what batch norms remember."""
    images, seconds = synthetic_images(scene)
    return trained(scene, "synthetic", network, images, seconds=seconds)


def distill(scene: Scene, network: nn.Module) -> Attempt:
    """Trains the network to answer as the dense one does, on all images."""
    return trained(scene, "distill", network, scene.splits.calibration)


def full(scene: Scene, network: nn.Module) -> Attempt:
    """Trains on labels and on what the dense network answers."""
    if not scene.labelled:
        raise DataError(
            f"{scene.splits.calibration.images.name}: no labels, which level full needs; levels that work "
            f"without are: {', '.join(level.name for level in LEVELS.values() if not level.needs_labels)}"
        )
    return trained(scene, "full", network, scene.splits.calibration, labels=True)


def _count(batches: Sequence[Tensor]) -> int:
    return sum(len(batch) for batch in batches)


LEVELS = {
    level.name: level
    for level in (
        Level("none", "nothing; says how good the network is", False, False, none),
        Level("stats", "means in biases and batch norms set right, by counting", False, True, stats),
        Level("refit", "layers fitted to the dense ones' outputs, by least squares", False, True, refit),
        Level("mimic", "layers trained on the dense ones' outputs, few images", False, True, mimic, 1.0),
        Level("synthetic", "the same on images made of batch norms", False, False, synthetic, 2.0),
        Level("distill", "trained on the dense network's answers, all images", False, True, distill, 6.0),
        Level("full", "trained on labels and the dense network's answers", True, True, full, 6.0),
    )
}
"""From the cheapest up."""
