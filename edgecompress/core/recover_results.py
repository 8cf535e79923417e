"""What `edgecompress recover` returns."""

from __future__ import annotations

from typing import Literal

from edgecompress.core.results import ModelSummary, SplitSummary
from edgecompress.core.types import Plan, Record


class Standing(Record):
    """How good a network is on the selection images."""

    top1: float | None
    """In percent; None: the images have no labels."""
    right: float | None
    """Mean probability of the right class, in percent; None without labels."""
    divergence: float
    """KL(dense | network) of an image, at most 1, on average."""


class Rung(Record):
    """One level of the ladder."""

    level: str
    outcome: str
    """What it did, or why it did nothing, in words."""
    gain: float | None
    """Points of top-1 on the selection images, against the best network before; None without labels."""
    minutes: float
    kept: bool
    before: Standing
    after: Standing | None
    """None where the level did nothing."""
    steps: int = 0
    """Of training."""


class RecoverResult(Record):
    """What `recover` did. `result.json`."""

    schema_version: Literal[1] = 1
    run: str
    """Directory with `run.json`, `plan.json` and `weights.safetensors`."""
    parent: str
    """Name of the run it started from."""
    level: str
    """The highest that was tried."""
    preset: str
    plan: Plan
    dense: ModelSummary
    before: ModelSummary
    """The network as it came."""
    compressed: ModelSummary
    """The best one found, on the report images as the other two."""
    ladder: tuple[Rung, ...]
    split: SplitSummary
    steps: tuple[tuple[str, str], ...] = ()
    """What a reader should know."""
    seconds: dict[str, float]
    """Time spent per level, and for the report."""
