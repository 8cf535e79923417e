"""Gates that serve two copies of the weights, each trained on half of the images (RARTS).

Reference: Xue, Qi and Xin, RARTS: An Efficient First-Order Relaxed Architecture Search Method, 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Group
from edgecompress.search.gate_search import rarts_search
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
    found = rarts_search(model, groups, batches, settings, seed, progress)
    return {name: alpha.abs() for name, alpha in found.alphas.items()}


SCORES = Scores("rarts", "gates shared by two copies of the weights on separate images (RARTS)", score)
