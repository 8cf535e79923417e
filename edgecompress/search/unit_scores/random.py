"""Nothing is known about any unit: the control every other rule has to beat."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Group
from edgecompress.search.image_pool import Batch
from edgecompress.search.score_contract import Scores, ScoreSettings, UnitScores


def score(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Batch],
    settings: ScoreSettings,
    seed: int,
    progress: Progress,
) -> UnitScores:
    """Returns numbers that are drawn."""
    generator = torch.Generator().manual_seed(seed)
    return {group.name: torch.rand(group.width, generator=generator) for group in groups}


SCORES = Scores("random", "drawn at random: the control for all others", score, needs_images=False)
