"""The parts `vit` and `widths` of `bench_pruning.py`: pruned trained networks, before and after training."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pruning_baseline import Setting, by_torch_pruning
from torch import Tensor, nn

from edgecompress.core.plugins import discover
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.data.sources import open_source
from edgecompress.data.splits import Splits, image_sets, make_splits
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.evaluate import accuracy
from edgecompress.pipeline.narrowed import Narrowable, find_narrowable, realise_narrowed
from edgecompress.pipeline.narrowed_costs import NarrowedCost, narrowed_macs, shapes_of
from edgecompress.search import unit_scores
from edgecompress.search.score_contract import Scores, ScoreSettings, UnitScores
from edgecompress.search.unit_selection import Kept, kept_by_ratio

CALIBRATION, SELECTION, BATCH = 448, 64, 64
LR = 5e-4
"""Reached after a tenth of the steps; then it falls as a cosine."""
TEMPERATURE, SMOOTHING = 2.0, 0.05

Way = Literal["as it is", "repaired"]
DENSE = "dense"
LIBRARY = {
    "torch-pruning, same layers": Setting(),
    "torch-pruning, same layers, ranked together": Setting(ranked_together=True),
    "torch-pruning, all layers": Setting(everything=True),
}


@dataclass(frozen=True)
class Task:
    """A trained network, its images and what is taken away from it."""

    model: str
    weights: str | None
    data: str
    what: Literal["dims", "widths"]
    methods: dict[str, tuple[str, Way]]
    """Name of the row, scores, and whether what stays is repaired; ours first."""


@dataclass(frozen=True)
class _Scene:
    """A network and its images, for one seed."""

    task: Task
    loaded: LoadedModel
    found: Narrowable
    splits: Splits
    pool: tuple[Tensor, Tensor]
    """Images to train on, and their labels."""
    seed: int
    options: argparse.Namespace

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.loaded.ref.input_shape

    def macs(self, network: nn.Module) -> int:
        return total_macs(profile(network, self.shape))


def vit_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per share, seed and method for the embedded transformer."""
    methods: dict[str, tuple[str, Way]] = {
        "ours: reconstruction, repaired": ("reconstruction", "repaired"),
        "taylor, repaired": ("taylor", "repaired"),
        "taylor": ("taylor", "as it is"),
        "random": ("random", "as it is"),
    }
    yield from _rows(Task("zoo:fashion_vit", None, options.fashion, "dims", methods), options)


def width_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per share, seed and method for ResNet-56."""
    methods: dict[str, tuple[str, Way]] = {
        "ours: reconstruction, repaired": ("reconstruction", "repaired"),
        "rarts, repaired": ("rarts", "repaired"),
        "rarts": ("rarts", "as it is"),
        "gamma (NetSlim)": ("gamma", "as it is"),
        "gamma, repaired": ("gamma", "repaired"),
        "random": ("random", "as it is"),
    }
    weights, data = options.resnet56_weights, options.cifar
    yield from _rows(Task("zoo:resnet56", weights, data, "widths", methods), options)


def _rows(task: Task, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    loaded = load_model(task.model, weights=task.weights)
    is_dims = task.what == "dims"
    found = find_narrowable(loaded, widths=not is_dims, dims=is_dims, residual=False)
    for seed in range(options.seeds):
        scene = _scene(task, loaded, found, seed, options)
        if _is_wanted(DENSE, scene):
            yield _judged(scene, DENSE, 0.0, partial(copy.deepcopy, loaded.module))
        yield from _pruned_rows(scene)


def _scene(
    task: Task, loaded: LoadedModel, found: Narrowable, seed: int, options: argparse.Namespace
) -> _Scene:
    source = open_source(task.data, loaded.ref.preprocess)
    splits = make_splits(source, calibration=CALIBRATION, selection=SELECTION, seed=seed)
    train, _ = image_sets(source, None)
    labels = train.labels()
    assert labels is not None  # both data sets have them
    drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[
        : options.training_images
    ]
    pool = (train.images(drawn.tolist()), torch.as_tensor(labels)[drawn])
    return _Scene(task, loaded, found, splits, pool, seed, options)


def _pruned_rows(scene: _Scene) -> Iterator[dict[str, Any]]:
    ours = {name: how for name, how in scene.task.methods.items() if _is_wanted(name, scene)}
    first = next(iter(scene.task.methods.values()))[0]
    scores = {rule: _scored(scene, rule) for rule in {first, *(rule for rule, _ in ours.values())}}
    cost = narrowed_macs(shapes_of(scene.found.module, scene.shape), scene.found.groups)
    for ratio in scene.options.ratios:
        limit = _macs(cost, _kept(scene, scores[first], ratio))
        for name, (rule, way) in ours.items():
            kept = _kept_near(partial(_kept, scene, scores[rule]), partial(_macs, cost), limit)
            yield _judged(scene, name, ratio, partial(_cut, scene, kept, way))
        for name in (name for name in LIBRARY if _is_wanted(name, scene)):
            yield _judged(scene, name, ratio, partial(_by_library, scene, limit, LIBRARY[name]))


def _macs(cost: NarrowedCost, kept: Kept) -> float:
    return cost({name: len(units) for name, units in kept.items()})


def _by_library(scene: _Scene, macs: float, setting: Setting) -> nn.Module:
    images = scene.splits.calibration
    return by_torch_pruning(scene.loaded.module, scene.shape, macs, images, setting)


def _is_wanted(name: str, scene: _Scene) -> bool:
    wanted = scene.options.methods
    return not wanted or any(name == one or name.startswith(f"{one}:") for one in wanted)


def _scored(scene: _Scene, rule: str) -> UnitScores:
    batches = [(images, None) for images, _ in scene.splits.calibration.batches(128)]
    score = discover(unit_scores, Scores)[rule].score
    return score(scene.found.module, scene.found.groups, batches, ScoreSettings(), scene.seed, NO_PROGRESS)


def _kept(scene: _Scene, scores: UnitScores, ratio: float) -> Kept:
    return kept_by_ratio(scene.found.groups, scores, ratio, multiple=1)


def _kept_near(kept_at: Callable[[float], Kept], macs: Callable[[Kept], float], limit: float) -> Kept:
    """Returns what stays at the share whose MACs are nearest to the limit."""
    low, high = 0.01, 0.99
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if macs(kept_at(middle)) > limit else (low, middle)
    return min((kept_at(low), kept_at(high)), key=lambda kept: abs(macs(kept) - limit))


def _cut(scene: _Scene, kept: Kept, way: Way) -> nn.Module:
    splits = scene.splits
    calibration = [images for images, _ in splits.calibration.batches(128)]
    selection = [images for images, _ in splits.selection.batches(128)]
    done = realise_narrowed(
        scene.found.module,
        scene.found.groups,
        kept,
        calibration if way == "repaired" else (),
        selection if way == "repaired" else (),
        seed=scene.seed,
    )
    return done.module


def _judged(scene: _Scene, name: str, ratio: float, make: Callable[[], nn.Module]) -> dict[str, Any]:
    """Returns a row: the network as it was made, and after the training all get."""
    row = {"model": scene.task.model, "method": name, "ratio": ratio, "seed": scene.seed}
    start = time.perf_counter()
    try:
        network = make()
    except Exception as error:  # noqa: BLE001  # a library that cannot prune the network is a result
        return row | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    dense, made = scene.loaded.module, time.perf_counter()
    return row | {
        "macs": scene.macs(network) / scene.macs(dense),
        "params": total_params(network) / total_params(dense),
        "top1": _top1(network, scene),
        "tuned_top1": _top1(_trained(network, scene), scene) if scene.options.steps else None,
        "steps": scene.options.steps,
        "prune_seconds": round(made - start, 1),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _top1(network: nn.Module, scene: _Scene) -> float:
    assert scene.splits.report is not None  # all images that may be reported were asked for
    return accuracy(network.eval(), scene.splits.report, size=128, progress=NO_PROGRESS, what="").top1


def _trained(network: nn.Module, scene: _Scene) -> nn.Module:
    """Returns a copy trained on labels and on what the dense network says, half and half."""
    network = copy.deepcopy(network).train().requires_grad_(True)
    optimiser = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LR, scene.options.steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(scene.seed)
    for _ in range(scene.options.steps):
        images, labels = _drawn(scene.pool, generator)
        loss = _loss(network(images), _said(scene.loaded.module, images), labels)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
    return network.eval()


def _drawn(pool: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns a batch, half of its images mirrored."""
    chosen = torch.randint(len(pool[0]), (BATCH,), generator=generator)
    images, mirrored = pool[0][chosen], torch.rand(BATCH, generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(3), images), pool[1][chosen]


@torch.no_grad()
def _said(dense: nn.Module, images: Tensor) -> Tensor:
    answers: Tensor = dense.eval()(images)
    return (answers / TEMPERATURE).log_softmax(1)


def _loss(answers: Tensor, said: Tensor, labels: Tensor) -> Tensor:
    softened = (answers / TEMPERATURE).log_softmax(1)
    taught = F.kl_div(softened, said, log_target=True, reduction="batchmean") * TEMPERATURE**2
    return (taught + F.cross_entropy(answers, labels, label_smoothing=SMOOTHING)) / 2
