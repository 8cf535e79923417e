"""Gates trained together with the weights under an l1 penalty; what stays large is needed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Group
from edgecompress.search.gate_search import joint_search
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
    """Returns the size of every gate after the search; many are exactly zero."""
    found = joint_search(model, groups, batches, settings, seed, progress)
    return {name: alpha.abs() for name, alpha in found.alphas.items()}


SCORES = Scores("joint", "gates trained with the weights until useless ones are zero", score)
