"""When a training that starts with one pass per step goes over to two: triggers that fire once and stay.

    variance   the norms of the last 10 gradients vary less than a threshold times those of the warm-up
    gap        losses of training and validation are further apart than a threshold times those of the warm-up
    at         a share of all epochs is over

Triggers are asked at the end of epochs. The warm-up is the first tenth of all epochs, one at least; the first
two cannot fire at the end of one of these.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from edgecompress.errors import ConfigError

Kind = Literal["variance", "gap", "at"]

USUAL_THRESHOLDS: Mapping[str, float] = {"variance": 0.2, "gap": 2.0, "at": 0.6}
EXAMPLES = "none, variance, variance:0.2, gap, gap:2 or at:0.6"
WINDOW = 10
"""Steps over which the variance is taken."""
GAP_EVERY = 3
"""Epochs from one look at the gap to the next."""


def warm_up_epochs(epochs: int) -> int:
    """Returns how many epochs the warm-up takes."""
    return max(1, epochs // 10)


@dataclass
class Moments:
    """Mean and variance of numbers that come one by one (Welford, 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""

    def add(self, value: float) -> None:
        """Takes one more number into account."""
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of the numbers as a whole population; 0 without any."""
        return self.squares / max(1, self.count)


@dataclass
class Trigger:
    """Watches a training until it fires. Numbers that are not finite are passed over."""

    kind: Kind
    threshold: float
    fired: bool = False
    warming_up: bool = True
    warm_up: Moments = field(default_factory=Moments)
    """Of the norms of gradients, or of the gaps."""
    recent: list[float] = field(default_factory=list)
    """Norms of the last gradients."""

    def see_gradient(self, norm: float) -> None:
        """Takes note of the norm of one step's gradient, before anything is done to it."""
        if self.kind != "variance" or self.fired or not math.isfinite(norm):
            return
        self.recent = [*self.recent, norm][-WINDOW:]
        if self.warming_up:
            self.warm_up.add(norm)

    def end_epoch(self, epoch: int, epochs: int, train_loss: float, validation_loss: float | None) -> None:
        """Decides at the end of an epoch, counted from 0.

        Raises:
            ConfigError: the gap is asked for and there is no validation loss.
        """
        if self.fired:
            return
        gap = _gap(train_loss, validation_loss) if self.kind == "gap" else 0.0
        if self.kind == "at":
            self.fired = epoch + 1 >= self.threshold * epochs
        elif epoch >= warm_up_epochs(epochs):
            self.fired = self._is_time(epoch, gap)
        elif self.kind == "gap" and math.isfinite(gap):
            self.warm_up.add(gap)
        self.warming_up = epoch + 1 < warm_up_epochs(epochs)

    def _is_time(self, epoch: int, gap: float) -> bool:
        if self.warm_up.count == 0:
            return False
        if self.kind == "gap":
            return (epoch + 1) % GAP_EVERY == 0 and gap > self.threshold * self.warm_up.mean
        is_full = len(self.recent) == WINDOW
        return is_full and statistics.pvariance(self.recent) < self.threshold * self.warm_up.variance

    def state_dict(self) -> dict[str, Any]:
        """Returns what it has seen and how it decides, in numbers, texts, lists and dicts."""
        return {**vars(self), "warm_up": dict(vars(self.warm_up)), "recent": list(self.recent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to what `state_dict` told."""
        vars(self).update({**state, "warm_up": Moments(**state["warm_up"]), "recent": list(state["recent"])})


def _gap(train_loss: float, validation_loss: float | None) -> float:
    if validation_loss is None:
        raise ConfigError("timing 'gap': there is no validation loss; keep images for validation")
    return abs(validation_loss - train_loss)


def parse_timing(text: str) -> Trigger | None:
    """Reads `none`, or `variance`, `gap` or `at`, each with or without `:THRESHOLD`.

    Raises:
        ConfigError: it is none of these.
    """
    if text == "none":
        return None
    kind, *numbers = text.split(":")
    try:
        (threshold,) = (float(number) for number in numbers) if numbers else (USUAL_THRESHOLDS[kind],)
    except (KeyError, ValueError):
        raise ConfigError(f"timing {text!r}: not understood; write {EXAMPLES}") from None
    if kind not in USUAL_THRESHOLDS or not 0 < threshold < (1 if kind == "at" else math.inf):
        raise ConfigError(f"timing {text!r}: unknown or out of range; write {EXAMPLES}")
    return Trigger(cast(Kind, kind), threshold)
