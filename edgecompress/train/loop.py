"""The training loop: batches, closures, schedules, averages, epochs that are judged, and checkpoints.

Everything a step does follows from the seed, its number and the state before it. So a training that was
killed goes on from its checkpoint with the same result, and several processes find what one finds.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgecompress.core.plugins import discover, pick
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.train_results import EpochRow
from edgecompress.errors import ModelError
from edgecompress.train import optimisers
from edgecompress.train.average import Average
from edgecompress.train.checkpoint import copied, load_state, save_state
from edgecompress.train.contract import Course, Objective
from edgecompress.train.images import TrainingImages
from edgecompress.train.optimiser_contract import (
    FollowsTraining,
    Optimiser,
    OptimiserSettings,
    begin_epoch,
    end_epoch,
)
from edgecompress.train.parallel import add_up_, add_up_all_, is_first, same_everywhere
from edgecompress.train.schedules import Schedule
from edgecompress.train.synchronised import synchronised_norms

CHECKPOINT_S = 60.0
"""Seconds between two checkpoints within an epoch."""

Judge = Callable[[nn.Module], float]
"""How good a network is; higher is better."""


@dataclass(frozen=True)
class TrainSettings:
    """How long and by what a network is trained."""

    steps: int
    schedule: Schedule
    optimiser: str = "sgd"
    optimiser_settings: OptimiserSettings = field(default_factory=OptimiserSettings)
    norms: Literal["train", "frozen"] = "train"
    """Frozen batch norms keep their statistics, and use them."""
    ema: float | None = None
    """Decay of an average of the weights that takes their place in the end; None: none is kept."""
    clip_norm: float | None = None
    """Longest gradient."""


@dataclass(frozen=True)
class Fitted:
    """A trained network and how it came about."""

    module: nn.Module
    """Finished by the course, in eval mode; of the best epoch where epochs were judged."""
    rows: tuple[EpochRow, ...]
    best_epoch: int | None
    best_score: float | None
    stopped: str | None
    """Why it ended before its time."""
    seconds: float


@dataclass
class _Standing:
    """What changes; all of it is in a checkpoint."""

    step: int = 0
    losses: float = 0.0
    """Sum over the steps of this epoch."""
    rows: list[EpochRow] = field(default_factory=list)
    rate: float = 1.0
    """What plateaus left of the learning rate."""
    stale: int = 0
    """Epochs since the best one or the last fall of the rate."""
    seconds: float = 0.0
    stopped: str | None = None
    best_score: float = -math.inf
    best_epoch: int = 0


def fit(
    course: Course,
    objective: Objective,
    images: TrainingImages,
    settings: TrainSettings,
    *,
    judge: Judge | None = None,
    held_out_loss: Judge | None = None,
    checkpoint: Path | None = None,
    identity: str = "",
    progress: Progress = NO_PROGRESS,
) -> Fitted:
    """Trains a course to its end, or until its loss is no longer finite.

    With a `judge`, every epoch is judged and the best one is returned, the start included. `held_out_loss`
    is asked where an optimiser waits for a gap between it and the loss on training images. `checkpoint` is
    where the training keeps its state; a file of an earlier process is gone on with.

    Raises:
        ArtefactError: the checkpoint is damaged or of another `identity`.
        ModelError: the loss was not finite before an epoch could be finished.
    """
    training = _Training(course, objective, images, settings, judge, held_out_loss)
    if checkpoint is not None and checkpoint.is_file():
        training.restore_(load_state(checkpoint, identity))
    else:
        training.begin_()
    saved = time.monotonic()
    with synchronised_norms(course.network):
        for _ in progress.track(training.steps(), training, total=settings.steps):
            due = time.monotonic() - saved > CHECKPOINT_S or training.at_epoch_end
            if checkpoint is not None and due and is_first():
                save_state(checkpoint, training.state(), identity)
                saved = time.monotonic()
    return training.fitted()


class _Training:
    """One training in progress."""

    def __init__(
        self,
        course: Course,
        objective: Objective,
        images: TrainingImages,
        settings: TrainSettings,
        judge: Judge | None,
        held_out_loss: Judge | None,
    ) -> None:
        self.course, self.objective, self.images = course, objective, images
        self.settings, self.judge, self.held_out_loss = settings, judge, held_out_loss
        self.trained = [one for one in course.network.parameters() if one.requires_grad]
        rule = pick(discover(optimisers, Optimiser), settings.optimiser, what="optimizer")
        self.optimiser = rule.make(course.network, settings.optimiser_settings)
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.average = None if settings.ema is None else Average(course.network, settings.ema)
        self.standing = _Standing()
        self.best: dict[str, Tensor] | None = None
        self.began = time.perf_counter()

    def begin_(self) -> None:
        """Judges the network as it comes: training that only harms it is not kept."""
        if self.judge is not None:
            self._judge_(0)

    def __str__(self) -> str:
        """Returns what a progress bar says."""
        if not self.standing.rows:
            return "training"
        last = self.standing.rows[-1]
        score = "" if last.score is None else f", score {last.score:.2f}"
        return f"training, epoch {last.epoch}: loss {last.loss:.4f}{score}"

    @property
    def epochs(self) -> int:
        return max(1, round(self.settings.steps / self.images.steps_per_epoch))

    @property
    def at_epoch_end(self) -> bool:
        step = self.standing.step
        return step >= self.settings.steps or step % self.images.steps_per_epoch == 0

    def steps(self) -> Iterator[int]:
        """Takes the steps that are left, and yields after each."""
        while self.standing.step < self.settings.steps and self.standing.stopped is None:
            self._step_()
            yield self.standing.step

    def _step_(self) -> None:
        standing = self.standing
        self._tell_progress_()
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._share()
        batch = self.images.batch(standing.step)
        self._into_training_mode_()

        def closure() -> float:
            torch.manual_seed(self.images.seed * 1_000_003 + standing.step)  # for dropout
            self.optimiser.zero_grad()
            with torch.enable_grad():
                loss = self.course.backward(self.objective, batch)
            return self._summed_(loss)

        loss = self.optimiser.step(closure)
        self.course.after_step(standing.step)
        standing.step += 1
        standing.losses += loss
        if self.average is not None:
            self.average.follow_(self.course.network)
        if not math.isfinite(loss):
            self._give_up_()
        elif self.at_epoch_end:
            self._end_epoch_()

    def _share(self) -> float:
        middle = (self.standing.step + 0.5) / self.settings.steps  # at its start a warm-up has no rate at all
        return self.standing.rate * self.settings.schedule.share(middle)

    def _summed_(self, loss: Tensor) -> float:
        """Makes gradients those of all processes, and returns the loss of all."""
        grads = [one.grad for one in self.trained if one.grad is not None]
        if not self.course.summed:
            add_up_all_(grads)
        total = loss.detach().clone().double()
        add_up_(total)
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self.settings.clip_norm)
        return float(total)

    def _into_training_mode_(self) -> None:
        self.course.network.train()
        if self.settings.norms == "frozen":
            for module in self.course.network.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()

    def _tell_progress_(self) -> None:
        """Tells an optimiser with a clock of its own how far training is, at every start of an epoch."""
        epoch, within = divmod(self.standing.step, self.images.steps_per_epoch)
        if within == 0:
            begin_epoch(self.optimiser, epoch, self.epochs)

    def _end_epoch_(self) -> None:
        standing = self.standing
        before = standing.rows[-1].steps if standing.rows else 0
        loss, epoch = standing.losses / (standing.step - before), len(standing.rows) + 1
        score = None if self.judge is None else self._judge_(epoch)
        seconds = standing.seconds + time.perf_counter() - self.began
        lr = float(self.optimiser.param_groups[0]["lr"])
        standing.rows.append(
            EpochRow(epoch=epoch, steps=standing.step, loss=loss, lr=lr, score=score, seconds=seconds)
        )
        standing.losses = 0.0
        end_epoch(self.optimiser, loss, self._held_out())
        self._watch_plateau_(epoch)

    def _held_out(self) -> float | None:
        if self.held_out_loss is None or not isinstance(self.optimiser, FollowsTraining):
            return None
        return same_everywhere(self.held_out_loss(self._judged_network()))

    def _judge_(self, epoch: int) -> float:
        assert self.judge is not None
        score = same_everywhere(self.judge(self._judged_network()))
        standing = self.standing
        if score > standing.best_score:
            standing.best_score, standing.best_epoch, standing.stale = score, epoch, 0
            self.best = copied(self._judged_state())
        else:
            standing.stale += 1
        return score

    def _judged_network(self) -> nn.Module:
        network = self.course.network if self.average is None else self.average.network
        return network.eval()

    def _judged_state(self) -> dict[str, Tensor]:
        return self._judged_network().state_dict()

    def _watch_plateau_(self, epoch: int) -> None:
        standing, plateau = self.standing, self.settings.schedule.plateau
        if plateau is None or standing.stale <= plateau.patience:
            return
        standing.stale, standing.rate = 0, standing.rate * plateau.factor
        if standing.rate < plateau.least * (1 - 1e-9):
            standing.stopped = f"epoch {epoch}: none was better for a while, at the lowest rate"

    def _give_up_(self) -> None:
        if self.best is None:
            raise ModelError(
                f"training: the loss is not finite after {self.standing.step} steps; lower --lr, "
                "or check images and weights"
            )
        self.standing.stopped = (
            f"diverged: the loss was not finite after {self.standing.step} steps; "
            f"kept epoch {self.standing.best_epoch}"
        )

    def state(self) -> dict[str, Any]:
        """Returns everything a later process needs."""
        standing = dict(vars(self.standing))
        standing["rows"] = [row.model_dump() for row in self.standing.rows]
        standing["seconds"] += time.perf_counter() - self.began
        return {
            "standing": standing,
            "network": self.course.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": None if self.average is None else self.average.state(),
            "best": self.best,
        }

    def restore_(self, state: dict[str, Any]) -> None:
        """Goes back to where `state` was taken."""
        kept = state["standing"]
        kept["rows"] = [EpochRow(**row) for row in kept["rows"]]
        self.standing = _Standing(**kept)
        self.course.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.average is not None:
            self.average.restore_(state["average"])
        self.best = state["best"]
        self.began = time.perf_counter()

    def fitted(self) -> Fitted:
        """Returns the result; the course's network gets the weights that count."""
        standing = self.standing
        keeps_last = self.course.keeps_last and standing.stopped is None
        judged = self.best is not None and not keeps_last
        weights = self.best if self.best is not None and judged else copied(self._judged_state())
        self.course.network.load_state_dict(weights)
        return Fitted(
            module=copy.deepcopy(self.course.finish()),
            rows=tuple(standing.rows),
            best_epoch=standing.best_epoch if judged else None,
            best_score=standing.best_score if judged else None,
            stopped=standing.stopped,
            seconds=standing.seconds + time.perf_counter() - self.began,
        )
