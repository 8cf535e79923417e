"""What training tells: a row per epoch, and the result of `edgecompress train`."""

from __future__ import annotations

from typing import Literal

from edgecompress.core.results import ModelSummary, SplitSummary
from edgecompress.core.types import Plan, Record


class EpochRow(Record):
    """One epoch of training."""

    epoch: int
    """From 1."""
    steps: int
    """Taken since the beginning."""
    loss: float
    """Mean over the epoch."""
    lr: float
    """At the epoch's end."""
    score: float | None
    """On selection images, higher is better; None where nothing judges."""
    seconds: float


class TrainResult(Record):
    """What `edgecompress train` did. `result.json`."""

    schema_version: Literal[1] = 1
    run: str
    method: str
    """Of `edgecompress list methods`."""
    optimiser: str
    plan: Plan
    """The network that was trained; with blocks where the method put some."""
    dense: ModelSummary
    """The network before training; of a fresh one the accuracy is that of random weights."""
    compressed: ModelSummary
    """The network after training, named as in all results."""
    epochs: tuple[EpochRow, ...]
    best_epoch: int | None
    """The one that was kept; None: the last."""
    stopped: str | None
    """Why training ended before its time."""
    split: SplitSummary
    ranks_used: tuple[tuple[str, int, int], ...]
    """Layer by layer: singular values above 1 % of the largest, and all."""
    steps: tuple[tuple[str, str], ...] = ()
    """What a reader should know."""
    seconds: dict[str, float]
