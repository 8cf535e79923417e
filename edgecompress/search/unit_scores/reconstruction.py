"""What the readers of a group lose, at best, when units go one by one and the others make up for them.

A unit that others can stand in for goes early, however large it is. Scores are the divergence from the dense
network each unit adds by going after those before it, in nats, so groups can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Group
from edgecompress.search.elimination import Elimination, eliminate
from edgecompress.search.image_pool import Batch
from edgecompress.search.readings import measure_readings
from edgecompress.search.score_contract import Scores, ScoreSettings, UnitScores


def score(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Batch],
    settings: ScoreSettings,
    seed: int,
    progress: Progress,
) -> UnitScores:
    """Returns the error each unit adds by going in its turn.

    Raises:
        DataError: there are no images.
        ModelError: nothing reads a group.
    """
    found = eliminations(model, groups, batches, seed, progress)
    return {name: one.scores for name, one in found.items()}


def eliminations(
    model: nn.Module, groups: Sequence[Group], batches: Sequence[Batch], seed: int, progress: Progress
) -> dict[str, Elimination]:
    """Returns the order in which the units of every group go."""
    readings = measure_readings(model, groups, batches, seed, progress)
    return {g.name: eliminate(readings[g.name], g.width) for g in progress.track(groups, "taking units away")}


def curves(found: dict[str, Elimination]) -> dict[str, Tensor]:
    """Returns the errors by number of units kept."""
    return {name: one.errors for name, one in found.items()}


SCORES = Scores("reconstruction", "what its readers lose when the other units make up for it", score)
