"""The levels of a recovery that train: how many steps the minutes allow, and the steps themselves."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgecompress.core.plugins import discover
from edgecompress.data.splits import Split
from edgecompress.nets.modules import layer_named
from edgecompress.pipeline.recover_rate import bearable_share, course_of
from edgecompress.pipeline.recover_recipes import Training, variation
from edgecompress.pipeline.recover_scene import Attempt, Scene
from edgecompress.train import optimisers
from edgecompress.train.balance import balance_chains_
from edgecompress.train.contract import Batch, Objective, backward_once
from edgecompress.train.images import TrainingImages
from edgecompress.train.loop import Fitted, fit
from edgecompress.train.mimic import Mix, mimicking
from edgecompress.train.objectives import at_precision
from edgecompress.train.one_kernel import join_blocks_
from edgecompress.train.optimiser_contract import Optimiser
from edgecompress.train.variations import parse_variations

JUDGED, JUDGED_AT_LEAST, JUDGING_SHARE = 20, 4, 0.05
"""Times a network is judged while it trains, where schedules do not count epochs, and the share of the time
that may take."""
TIMED_STEPS = 3
DIVERGED, LEAST_DIVERGED = 30.0, 10.0
"""Times the first loss, and what it must be at least, after which nothing good is to be expected."""


def trained(
    scene: Scene,
    level: str,
    network: nn.Module,
    split: Split,
    *,
    most: int | None = None,
    labels: bool = False,
    seconds: float | None = None,
) -> Attempt:
    """Trains a network by the recipe of a level for as long as its minutes last, and returns the best epoch.

    Epochs are judged on selection images: by labels where labels are learnt, else by the divergence from the
    dense network. `most` limits the number of images, `seconds` are all of the level's unless given.

    Raises:
        ArtefactError: the checkpoint of an earlier process is damaged or of another training.
    """
    training = scene.recipe.of(level)
    mix = _usable(training.mix, places=bool(scene.places), labels=labels)
    if mix is None:
        return Attempt(network, "nothing to compare: no compressed layer is in both networks", changed=False)
    balance_chains_(network)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a quarter faster on CPUs
    _choose_parameters_(scene, network, training)
    join_blocks_(network, scene.choices)
    own = Split(split.images, split.indices[:most], split.role)
    images = _images(scene, training, own, labels=labels)
    plain = at_precision(mimicking(_teacher(scene), scene.places, mix), training.precision)
    seconds = scene.seconds[level] if seconds is None else seconds
    steps, images = _planned(scene, level, network, plain, images, training, seconds)
    judge = scene.judge.rightness if labels else scene.judge.likeness
    checkpoint = scene.memo.path(f"{level} training.safetensors")
    if training.tries_rates:
        # what was found before the training began counts
        begun = checkpoint is not None and checkpoint.is_file()
        share = 1.0 if begun else bearable_share(network, plain, images, training, steps, judge)
        training = replace(training, lr=training.lr * scene.memo.number(f"{level} rate", lambda: share))
    fitted = fit(
        course_of(network),
        _stopping(scene, level, network, plain, images),
        images,
        training.settings(steps),
        judge=judge,
        checkpoint=checkpoint,
        identity=scene.identity(level),
        progress=scene.progress,
    )
    made = fitted.module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    taken = fitted.rows[-1].steps if fitted.rows else 0
    told = _told(fitted, own, images, taken) + _told_of_rate(training, scene.recipe.of(level))
    return Attempt(made.requires_grad_(True), told, taken, changed=fitted.best_epoch != 0)


def _teacher(scene: Scene) -> nn.Module:
    """Returns the dense network as it is quickest."""
    return copy.deepcopy(scene.dense).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _usable(mix: Mix, *, places: bool, labels: bool) -> Mix | None:
    """Returns the parts of a loss that these networks and images allow; None: there are none."""
    features, own = mix.features if places else 0.0, mix.labels if labels else 0.0
    if not (features or own or mix.answers):
        return None
    return replace(mix, features=features, labels=own)


def _choose_parameters_(scene: Scene, network: nn.Module, training: Training) -> None:
    """Makes all parameters learn, or only weights of what was compressed."""
    network.requires_grad_(training.trains == "all")
    if training.trains == "blocks":
        for layer in scene.layers:
            for name, parameter in layer_named(network, layer.name).named_parameters():
                parameter.requires_grad_(name.endswith("weight"))


def _images(scene: Scene, training: Training, split: Split, *, labels: bool) -> TrainingImages:
    size = scene.plan.model.preprocess.size
    wanted = parse_variations(variation(training, size, labels=labels), size, labels=labels)
    return TrainingImages(split, training.batch_images, wanted, scene.seed)


def _planned(
    scene: Scene,
    level: str,
    network: nn.Module,
    objective: Objective,
    images: TrainingImages,
    training: Training,
    seconds: float,
) -> tuple[int, TrainingImages]:
    """Returns how many steps fit into the time, and images with epochs long enough to be judged.

    Both are found once: a training that goes on after a kill must have the same schedule.
    """
    if scene.steps is not None:
        steps = scene.steps[level]
        return max(1, round(steps)), _judged_rarely(images, training, steps, JUDGED)
    memo = scene.memo
    passes = discover(optimisers, Optimiser)[training.optimiser].passes
    a_step = memo.number(f"{level} step", lambda: passes * _step_seconds(network, objective, images))
    a_judging = memo.number(f"{level} judging", lambda: _judging_seconds(scene, network))
    steps = seconds / a_step
    affordable = max(JUDGED_AT_LEAST, min(JUDGED, JUDGING_SHARE * seconds / a_judging))
    images = _judged_rarely(images, training, steps, affordable)
    a_step += a_judging / images.steps_per_epoch
    return max(1, int(seconds / a_step)), images


def _judged_rarely(images: TrainingImages, training: Training, steps: float, times: float) -> TrainingImages:
    """Returns images whose epochs are long enough: of a few images they are over in no time."""
    if training.counts_epochs:
        return images
    repeats = max(1, math.ceil(steps / times / images.steps_per_epoch))
    longer = Split(images.split.images, images.split.indices * repeats, images.split.role)
    return replace(images, split=longer)


def _step_seconds(network: nn.Module, objective: Objective, images: TrainingImages) -> float:
    """Times steps on a copy, after one that does not count."""
    probe = copy.deepcopy(network).train()
    for step in range(1 + TIMED_STEPS):
        if step == 1:
            began = time.perf_counter()
        backward_once(probe, objective, images.batch(step))
    return (time.perf_counter() - began) / TIMED_STEPS


def _judging_seconds(scene: Scene, network: nn.Module) -> float:
    scene.judge.likeness(network)  # what the dense network says is found once
    began = time.perf_counter()
    scene.judge.likeness(network)
    return time.perf_counter() - began


def _stopping(
    scene: Scene, level: str, network: nn.Module, objective: Objective, images: TrainingImages
) -> Objective:
    """Returns an objective that is infinite when it is far beyond where it began: the loop stops then."""
    first = scene.memo.number(f"{level} first loss", lambda: _first_loss(network, objective, images.batch(0)))
    limit = max(DIVERGED * first, LEAST_DIVERGED)

    def watched(network: nn.Module, batch: Batch) -> Tensor:
        loss = objective(network, batch)
        return loss * math.inf if float(loss.detach()) > limit * len(batch.images) else loss

    return watched


@torch.no_grad()
def _first_loss(network: nn.Module, objective: Objective, batch: Batch) -> float:
    loss = float(objective(copy.deepcopy(network).eval(), batch)) / len(batch.images)
    return loss if math.isfinite(loss) else 0.0


def _told_of_rate(used: Training, wanted: Training) -> str:
    lower = f"; learning rate {used.lr:.1g}: a short try at {wanted.lr:.1g} ruined it"
    return "" if used.lr == wanted.lr else lower


def _told(fitted: Fitted, split: Split, images: TrainingImages, steps: int) -> str:
    epochs = steps * images.size / len(split)
    told = f"{steps} steps, {epochs:.1f} times {len(split)} images"
    if fitted.stopped is not None:
        told += f"; {fitted.stopped}"
    elif fitted.best_epoch == 0:
        told += "; no epoch was better than the start"
    return told
