"""A unit matters as much as its weights are large, wherever it is made and read.

The root of the mean square rather than of the sum: groups differ in how many weights a unit has, and their
scores are compared. Batch norms do not count, and gates say nothing here.
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
    """Returns the root mean square of each unit's weights."""
    return {group.name: _sizes(model, group) for group in groups}


def _sizes(model: nn.Module, group: Group) -> Tensor:
    weighted = [
        cut for cut in group.cuts if isinstance(layer_named(model, cut.module), nn.Conv2d | nn.Linear)
    ]
    parts = [_unit_weights(model, group, cut) for cut in weighted if cut.axis != "head_dim"]
    if not parts:
        raise ConfigError(f"{group.name}: no layer with weights makes or reads it; magnitude does not apply")
    return torch.cat(parts, dim=1).square().mean(dim=1).sqrt()


def _unit_weights(model: nn.Module, group: Group, cut: Cut) -> Tensor:
    """Returns the weights of every unit at one place, (units, weights)."""
    weight = layer_named(model, cut.module).weight
    assert isinstance(weight, Tensor)
    along = weight.detach().transpose(0, 1) if cut.axis == "inputs" else weight.detach()
    own = along[entries(cut, range(group.width), group.width)].flatten(1)
    return own.reshape(cut.repeats, group.width, -1).transpose(0, 1).flatten(1)


SCORES = Scores(
    "magnitude", "root mean square of a unit's weights", score, needs_images=False, comparable=False
)
