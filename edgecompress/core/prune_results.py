"""What `edgecompress prune` returns."""

from __future__ import annotations

from typing import Literal

from edgecompress.core.results import ModelSummary, SplitSummary
from edgecompress.core.types import Plan, Record


class PrunedGroup(Record):
    """What became of the units of one group."""

    name: str
    kind: Literal["channels", "hidden", "head_dim"]
    before: int
    after: int


class PruneResult(Record):
    """What `prune` did. `result.json`."""

    schema_version: Literal[1] = 1
    run: str
    """Directory with `run.json`, `plan.json` and `weights.safetensors`."""
    plan: Plan
    scores: str
    """By which rule units were ranked."""
    scope: str
    """What was ranked together."""
    dense: ModelSummary
    compressed: ModelSummary
    groups: tuple[PrunedGroup, ...]
    """All that were ranked, those that lost nothing too."""
    refused: tuple[tuple[str, str], ...]
    """Modules that had to stay as wide as they were, each with the reason."""
    split: SplitSummary | None
    steps: tuple[tuple[str, str], ...] = ()
    """What was tried and kept on the selection split: refit, batch norms."""
    seconds: dict[str, float]
    """Time spent per stage."""
