"""The training that every compressed network of the scoreboard gets alike: so many minutes of one core.

What suits a network that is nearly right ruins one that is far off, and the way of using a method that is
best without training need not be best with it. So every way that reaches the point is trained by every
recipe for a share of the minutes, and the best of these is trained for the whole of them. Of its epochs and
the untrained networks the one stays that is best on test images which are not reported on.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from scoreboard_scene import Scene, Training
from torch import nn

from edgecompress.data.splits import Split
from edgecompress.pipeline.evaluate import batch_size
from edgecompress.pipeline.recover_judge import SelectionJudge
from edgecompress.train.contract import Course, backward_once
from edgecompress.train.images import TrainingImages, parse_changes
from edgecompress.train.loop import Fitted, Judge, TrainSettings, fit
from edgecompress.train.objectives import Teaching, from_teacher
from edgecompress.train.one_kernel import block_of, divided, join_blocks_
from edgecompress.train.optimiser_contract import OptimiserSettings
from edgecompress.train.schedules import parse_schedule

TEMPERATURE = 2.0
WARMUP = 0.05
PACE_STEPS = 8
TRIAL_SHARE = 0.25
"""Of the minutes, for each way by each recipe."""
AS_IT_WAS = "untrained"


@dataclass(frozen=True)
class Recovered:
    """The best network that training made of several."""

    module: nn.Module
    way: str
    """Of using the method."""
    training: str
    """What made it."""
    steps: int
    """How many fitted into the minutes."""


@dataclass(frozen=True)
class _Job:
    """A network and what it may be trained by."""

    way: str
    network: nn.Module
    recipe: str
    training: Training
    pace_s: float
    """Seconds of the processor that a step takes."""


def recovered(ways: Mapping[str, nn.Module], scene: Scene, minutes: float) -> Recovered:
    """Trains copies of networks for so many minutes, and returns the best.

    The minutes are those of the processor, so other programs take nothing away from anyone; how many steps
    they are is found out on a copy first. A network that is quicker to train gets more steps.
    """
    judge = _judge(scene)
    untrained = {way: judge(network) for way, network in ways.items()}
    jobs = list(_jobs(ways, scene))
    best = max(jobs, key=lambda job: _end_score(_trained(job, scene, TRIAL_SHARE * minutes, judge)))
    found = _trained(best, scene, minutes, judge)
    steps = steps_within(minutes, best.pace_s)
    start = max(untrained, key=lambda way: untrained[way])
    if untrained[start] >= (found.best_score or 0.0):
        return Recovered(ways[start], start, AS_IT_WAS, steps)
    module = found.module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return Recovered(module, best.way, best.recipe, steps)


def _jobs(ways: Mapping[str, nn.Module], scene: Scene) -> Iterator[_Job]:
    for way, network in ways.items():
        for recipe, training in scene.model.trainings.items():
            _fitted(network, scene, training, PACE_STEPS)  # what is allocated or loaded once does not count
            start = time.process_time()
            _fitted(network, scene, training, PACE_STEPS)
            pace_s = (time.process_time() - start) / PACE_STEPS
            yield _Job(way, network, recipe, training, pace_s)


def _end_score(found: Fitted) -> float:
    """Returns how good a network was in the end; where training only harms, its best is the start."""
    return found.rows[-1].score or 0.0


def _trained(job: _Job, scene: Scene, minutes: float, judge: Judge) -> Fitted:
    return _fitted(job.network, scene, job.training, steps_within(minutes, job.pace_s), judge)


def steps_within(minutes: float, pace_s: float) -> int:
    """Returns how many steps of so many seconds fit into minutes, one at least."""
    return max(1, int(60 * minutes / pace_s))


def _judge(scene: Scene) -> Judge:
    """Returns what epochs are judged by: top-1, then the mean probability of the right class.

    The probability alone would not do: training on labels raises it, whether or not top-1 follows.
    """
    split = scene.choosing
    judge = SelectionJudge(scene.loaded.module, split, True, batch_size(scene.shape))

    def score(network: nn.Module) -> float:
        standing = judge.seen(network).standing
        assert standing.top1 is not None and standing.right is not None  # there are labels
        return standing.top1 + standing.right / (100 * len(split))  # less than one image counts

    return score


def _fitted(
    network: nn.Module, scene: Scene, training: Training, steps: int, judge: Judge | None = None
) -> Fitted:
    torch.manual_seed(scene.options.seed)
    network = copy.deepcopy(network).requires_grad_(True)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    join_blocks_(network, _blocks(network))
    course = Course(network, partial(backward_once, network), lambda: divided(network).eval())
    settings = TrainSettings(
        steps,
        parse_schedule("cosine", warmup=WARMUP),
        training.optimiser,
        OptimiserSettings(lr=training.lr, weight_decay=training.weight_decay),
        norms=training.norms,
        clip_norm=1.0,
    )
    teaching = Teaching(training.teacher_weight, TEMPERATURE)
    objective = from_teacher(scene.loaded.module, teaching)
    return fit(course, objective, _images(scene, training), settings, judge=judge)


def _blocks(network: nn.Module) -> list[str]:
    """Returns the names of blocks, without those inside of others."""
    found: list[str] = []
    for name, module in network.named_modules():
        inside = any(name.startswith(f"{one}.") for one in found)
        if name and not inside and block_of(module) is not None:
            found.append(name)
    return found


def _images(scene: Scene, training: Training) -> TrainingImages:
    """Returns all training images but those that choose between variants."""
    assert scene.material.splits is not None  # data is always given
    drawn = scene.calibration_split
    choosing = set(scene.material.splits.selection.indices)
    left = tuple(index for index in range(len(drawn.images)) if index not in choosing)
    changes = parse_changes(training.augment, scene.shape[1:])
    split = Split(drawn.images, left, "calibration")
    return TrainingImages(split, training.batch_images, changes, scene.options.seed)
