"""What a network should learn: labels, what a teacher says, or both. Losses are summed over images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.errors import ConfigError, DataError
from edgecompress.train.contract import Batch, Objective

Precision = Literal["float32", "bfloat16"]
"""Of products and sums while a network is trained; weights, their steps and losses are float32 always."""


@dataclass(frozen=True)
class Teaching:
    """How much of the loss comes from a teacher, and how soft its answers are."""

    weight: float = 1.0
    """Share of the teacher's part; the rest is the loss on labels."""
    temperature: float = 4.0

    def __post_init__(self) -> None:
        """Checks both numbers."""
        if not 0 <= self.weight <= 1:
            raise ConfigError(f"distillation weight {self.weight:g}: must be between 0 and 1")
        if self.temperature <= 0:
            raise ConfigError(f"temperature {self.temperature:g}: must be above 0")


def from_labels(*, smoothing: float = 0.0) -> Objective:
    """Returns the cross-entropy with labels."""

    def objective(network: nn.Module, batch: Batch) -> Tensor:
        return label_loss(network(batch.images), batch.labels, smoothing)

    return objective


def from_teacher(
    teacher: Callable[[Tensor], Tensor], teaching: Teaching, *, smoothing: float = 0.0
) -> Objective:
    """Returns T^2 KL(teacher | network) at temperature T; the rest of its weight goes to labels."""

    def objective(network: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            said = teacher(batch.images)
        answers = network(batch.images)
        loss = teaching.weight * divergence(answers, said, teaching.temperature)
        if teaching.weight < 1:
            loss = loss + (1 - teaching.weight) * label_loss(answers, batch.labels, smoothing)
        return loss

    return objective


def parse_precision(text: str) -> Precision:
    """Reads the name of a precision.

    Raises:
        ConfigError: there is none of that name.
    """
    if text == "float32":
        return "float32"
    if text == "bfloat16":
        return "bfloat16"
    raise ConfigError(f"--precision {text!r}: not understood; write float32 or bfloat16")


def at_precision(objective: Objective, precision: Precision) -> Objective:
    """Returns an objective whose networks compute in that precision."""
    if precision == "float32":
        return objective

    def cast(network: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return objective(network, batch)

    return cast


def with_digits(values: Tensor) -> Tensor:
    """Returns values as float32 at least: differences between networks are lost in the 8 bits of bfloat16."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def label_loss(answers: Tensor, labels: Tensor | None, smoothing: float) -> Tensor:
    """Returns the summed cross-entropy.

    Raises:
        DataError: there are no labels.
    """
    if labels is None:
        raise DataError("training on labels: the images have none; give labelled images or a teacher")
    return F.cross_entropy(with_digits(answers), labels, label_smoothing=smoothing, reduction="sum")


def divergence(answers: Tensor, said: Tensor, temperature: float) -> Tensor:
    """Returns T^2 KL(said | answers) at temperature T, summed over images."""
    ours, theirs = ((with_digits(one) / temperature).log_softmax(1) for one in (answers, said))
    return temperature**2 * F.kl_div(ours, theirs, log_target=True, reduction="sum")
