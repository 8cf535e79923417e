"""The scales of batch norms say what passes: the score of network slimming.

It was made for networks trained with an l1 penalty on these scales, which others are not.

Reference: Liu et al., Learning Efficient Convolutional Networks through Network Slimming, ICCV 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Cut, Group
from edgecompress.errors import ConfigError
from edgecompress.nets.modules import layer_named
from edgecompress.nets.narrowing import entries
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
    """Returns the length of each unit's scales at all its gates.

    Raises:
        ConfigError: a gate is not a batch norm with a scale.
    """
    return {g.name: torch.stack([_scales(model, g, cut) for cut in g.gates]).norm(dim=0) for g in groups}


def _scales(model: nn.Module, group: Group, cut: Cut) -> Tensor:
    norm = layer_named(model, cut.module)
    if not isinstance(norm, nn.BatchNorm2d | nn.BatchNorm1d) or norm.weight is None:
        raise ConfigError(f"{group.name}: gamma needs a batch norm with a scale at {cut.module}; use taylor")
    own = norm.weight.detach()[entries(cut, range(group.width), group.width)]
    return own.reshape(cut.repeats, group.width, cut.run).square().sum((0, 2)).sqrt()


SCORES = Scores(
    "gamma",
    "scale of the batch norm a channel passes (network slimming)",
    score,
    needs_images=False,
    comparable=False,
)
