"""The loop all gradient searches have in common: steps, temperature, elasticity, checkpoints, progress."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from edgecompress.core.costs import op_macs
from edgecompress.core.progress import Progress
from edgecompress.errors import ConfigError
from edgecompress.search.contract import Choices
from edgecompress.search.design_space import Grid
from edgecompress.search.image_pool import ImagePool
from edgecompress.search.theta import Space, argmax_cost, pick, tilted
from edgecompress.search.theta_checkpoint import Standing, load_standing, save_standing
from edgecompress.train.parallel import is_first

CHECKPOINT_S = 5.0
"""Time between checkpoints."""
SMOOTHING = 0.9
"""Share of the past in what is shown and steered by."""


@dataclass(frozen=True, kw_only=True)
class GradientSettings:
    """How a gradient search runs."""

    steps: int = 300
    batch_images: int = 64
    temperature_start: float = 5.0
    temperature_decay: float = 0.965
    """Per epoch."""
    epochs: float = 100
    """How often the temperature decays over all steps: 100 epochs end at 0.14."""
    noise: float = 1.0
    """Scale of the Gumbel noise."""
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    """Coupled L2, 5e-4 in the paper. Adam makes it a pull of its own on scores without a gradient."""
    elasticity: float | None = None
    """How many per cent of loss one per cent of cost is worth; None: whatever meets the limit."""
    beta: float | None = None
    """The paper's exponent, of logarithms of MACs; converted to an elasticity."""
    gamma: Grid | None = None
    """First, last and step of shares of a layer's cost to keep candidates at; None: every rank."""
    tau: float | None = None
    """Largest predicted error of a candidate."""
    max_families: int | None = 4
    """Per layer; more where it takes more for `least_candidates`."""
    least_candidates: int = 100
    optimiser: Literal["adam", "rarts"] = "adam"
    """What moves besides the scores: nothing, or two copies of scales, shifts and biases."""
    weight_lr: float = 1e-3
    """Of the two copies of rarts."""
    auxiliary: float = 1.0
    """Weight of the auxiliary copy's loss, that of the primary being 1."""
    coupling: float = 1.0
    """How strongly the copies are held together."""

    def __post_init__(self) -> None:
        if self.elasticity is not None and self.beta is not None:
            raise ConfigError("elasticity and beta are two names of one thing; give one of them")
        for name in ("steps", "batch_images", "temperature_start", "temperature_decay", "epochs", "lr"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} {getattr(self, name)!r} of a gradient search: must be above 0")

    def temperature(self, step: int) -> float:
        """Returns the temperature of a step."""
        return self.temperature_start * math.exp(
            math.log(self.temperature_decay) * self.epochs * step / self.steps
        )


@dataclass(frozen=True)
class Found:
    """Where a gradient search ended."""

    choices: Choices
    cost: float
    """Of the whole model under `choices`, in the problem's unit; never above the limit."""
    argmax_cost: float
    """Of the plan with the best score of every layer, which need not meet the limit."""
    entropy: float
    """How undecided the layers are at the last temperature, on average, in nats."""
    steps: int
    loss: float
    """Task loss times (cost / dense cost) ** elasticity, of the last steps."""
    elasticity: float


@dataclass(frozen=True)
class StepFacts:
    """What one step saw."""

    loss: float
    """Task loss per image."""
    by_loss: Tensor
    """Gradient of its logarithm by the scores."""
    by_cost: Tensor
    """Gradient of the logarithm of the expected cost."""


Step = Callable[[Standing, float], StepFacts]
"""Makes one step at a temperature: changes the scores, not the count of steps."""


def fixed_elasticity(space: Space, settings: GradientSettings) -> float | None:
    """Returns the elasticity the settings ask for, None where the limit decides.

    The paper's (ln P / ln P_ref) ** beta is P ** w with w = beta / ln P near P; P are the MACs of the dense
    target layers, whatever the problem's unit.
    """
    if settings.beta is None:
        return settings.elasticity
    macs = sum(op_macs(o.layer.op, o.layer.in_size) for o in space.problem.options)
    return settings.beta / math.log(macs)


def train_(
    standing: Standing,
    space: Space,
    settings: GradientSettings,
    step: Step,
    *,
    progress: Progress,
    checkpoint: Path | None,
    identity: str,
) -> None:
    """Makes the steps that are left; a checkpoint is written every few seconds and at the end."""
    fixed, saved_s = fixed_elasticity(space, settings), time.monotonic()
    last = settings.temperature(settings.steps)
    standing.elasticity = standing.elasticity if fixed is None else fixed
    shown = _Shown(standing, space, last)
    for index in progress.track(range(standing.step, settings.steps), shown):
        temperature = settings.temperature(index)
        facts = step(standing, temperature)
        standing.step = index + 1
        if fixed is None:
            steer_(standing, facts, space, last)
        shown.cost = space.cost_of_scores(standing.scores, last)
        product = facts.loss * (shown.cost / space.dense_cost) ** standing.elasticity
        standing.loss = _smoothed(standing.loss, product)
        if checkpoint is not None and time.monotonic() - saved_s > CHECKPOINT_S and is_first():
            save_standing(checkpoint, standing, identity)
            saved_s = time.monotonic()
    if checkpoint is not None and is_first():
        save_standing(checkpoint, standing, identity)


def _smoothed(past: float, value: float) -> float:
    return value if math.isnan(past) else SMOOTHING * past + (1 - SMOOTHING) * value


@dataclass
class _Shown:
    """The line of the progress bar."""

    standing: Standing
    space: Space
    temperature: float
    cost: float = math.nan

    def __str__(self) -> str:
        undecided = self.space.entropy(
            self.space.probabilities(self.standing.scores.detach(), self.temperature)
        )
        unit = self.space.problem.metric
        return (
            f"gradient search: loss {self.standing.loss:.3f}, {self.cost:.4g} {unit}, entropy {undecided:.2f}"
        )


def steer_(standing: Standing, facts: StepFacts, space: Space, temperature: float) -> None:
    """Keeps the cost at the limit, and sets the elasticity to what leaves it there.

    That is the least-squares estimate of the multiplier of the constraint, from gradients; what it is off by
    a shift of all scores along the cost makes good. Dual ascent, from a guess of the elasticity, was still
    on its way to the limit when short searches ended.
    """
    standing.pull = _smoothed(standing.pull, -float(facts.by_loss @ facts.by_cost))
    standing.grip = _smoothed(standing.grip, float(facts.by_cost @ facts.by_cost))
    standing.elasticity = max(0.0, standing.pull / standing.grip) if standing.grip > 0 else 0.0
    standing.scores.copy_(tilted(space, standing.scores, temperature))


def restored(checkpoint: Path | None, identity: str) -> Standing | None:
    """Returns where an earlier process got to, None where there was none."""
    if checkpoint is None or not checkpoint.is_file():
        return None
    return load_standing(checkpoint, identity)


def identity_of(space: Space, settings: GradientSettings, seed: int, pool: ImagePool) -> str:
    """Returns a hash of everything a checkpoint must agree with."""
    digest = hashlib.blake2b(repr((dataclasses.asdict(settings), seed)).encode(), digest_size=16)
    problem = space.problem
    for options in problem.options:
        digest.update(repr((options.layer.name, options.errors, len(options.candidates))).encode())
    digest.update(repr((problem.metric, problem.limit, problem.fixed_cost)).encode())
    digest.update(space.costs.numpy().tobytes())
    digest.update(repr((len(pool), pool.targets.shape)).encode())
    digest.update(pool.batches[0][0].contiguous().numpy().tobytes())
    return digest.hexdigest()


def found_by(standing: Standing, space: Space, settings: GradientSettings) -> Found:
    """Returns the plan the scores amount to.

    Raises:
        BudgetError: none is within the limit.
    """
    scores, temperature = standing.scores.detach(), settings.temperature(settings.steps)
    choices = pick(space, scores)
    last = space.probabilities(scores, temperature)
    return Found(
        choices=choices,
        cost=space.problem.total(choices),
        argmax_cost=argmax_cost(space, scores),
        entropy=space.entropy(last),
        steps=standing.step,
        loss=standing.loss,
        elasticity=standing.elasticity,
    )


def fresh_adam(scores: Tensor) -> Standing:
    """Returns a search that has not begun, to be trained with `adam_`."""
    return Standing(scores, {name: torch.zeros_like(scores) for name in ("mean", "square")})


def adam_(standing: Standing, gradient: Tensor, settings: GradientSettings) -> None:
    """Changes the scores by one step of Adam with coupled L2; its moments are the standing's tensors."""
    mean, square = standing.tensors["mean"], standing.tensors["square"]
    (first, second), count = settings.betas, standing.step + 1
    pulled = gradient + settings.weight_decay * standing.scores
    mean.lerp_(pulled, 1 - first)
    square.lerp_(pulled.square(), 1 - second)
    size = settings.lr / (1 - first**count)
    standing.scores -= size * mean / ((square / (1 - second**count)).sqrt() + 1e-8)
