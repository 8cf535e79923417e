"""The training that every compressed network of the scoreboard gets alike: so many minutes of one core."""

from __future__ import annotations

import copy
import time
from functools import partial

import torch
from scoreboard_scene import Scene
from torch import nn

from edgecompress.data.splits import Split
from edgecompress.train.contract import Course, backward_once
from edgecompress.train.images import TrainingImages, parse_changes
from edgecompress.train.loop import TrainSettings, fit
from edgecompress.train.objectives import Teaching, from_teacher
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.schedules import parse_schedule

TEACHING = Teaching(weight=0.5, temperature=2.0)
"""Half of the loss is on labels, half is what the dense network says."""
WARMUP = 0.05
PACE_STEPS = 8


def recovered(network: nn.Module, scene: Scene, minutes: float) -> tuple[nn.Module, int]:
    """Returns a trained copy of a network, and how many steps fitted into the minutes.

    The minutes are those of the processor, so other programs take nothing away from anyone; how many steps
    they are is found out on a copy first. A network that is quicker to train gets more steps.
    """
    _fitted(network, scene, PACE_STEPS)  # what is allocated or loaded once does not count
    start = time.process_time()
    _fitted(network, scene, PACE_STEPS)
    pace_s = (time.process_time() - start) / PACE_STEPS
    steps = steps_within(minutes, pace_s)
    return _fitted(network, scene, steps), steps


def steps_within(minutes: float, pace_s: float) -> int:
    """Returns how many steps of so many seconds fit into minutes, one at least."""
    return max(1, int(60 * minutes / pace_s))


def _fitted(network: nn.Module, scene: Scene, steps: int) -> nn.Module:
    recipe = scene.model.training
    torch.manual_seed(scene.options.seed)
    network = copy.deepcopy(network).requires_grad_(True)
    course = Course(network, partial(backward_once, network), lambda: copy.deepcopy(network).eval())
    settings = TrainSettings(
        steps,
        parse_schedule("cosine", warmup=WARMUP),
        recipe.optimiser,
        OptimiserSettings(lr=recipe.lr, weight_decay=recipe.weight_decay),
        clip_norm=1.0,
    )
    return fit(course, from_teacher(scene.loaded.module, TEACHING), _images(scene), settings).module


def _images(scene: Scene) -> TrainingImages:
    """Returns all training images but those that choose."""
    assert scene.material.splits is not None  # data is always given
    drawn, recipe = scene.calibration_split, scene.model.training
    choosing = set(scene.material.splits.selection.indices)
    left = tuple(index for index in range(len(drawn.images)) if index not in choosing)
    changes = parse_changes(recipe.augment, scene.shape[1:])
    split = Split(drawn.images, left, "calibration")
    return TrainingImages(split, recipe.batch_images, changes, scene.options.seed)
