"""What a rule that scores units is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Group
from edgecompress.errors import ConfigError
from edgecompress.search.image_pool import Batch

UnitScores = dict[str, Tensor]
"""By name of group, one number per unit: the higher, the more the unit is needed."""


@dataclass(frozen=True)
class ScoreSettings:
    """How gates are trained; rules that train nothing read none of it."""

    steps: int = 200
    batch_images: int = 32
    lr: float = 0.01
    """Of the weights."""
    momentum: float = 0.9
    weight_decay: float = 1e-4
    """Of the weights alone. Without it weights grow while gates shrink and nothing is decided."""
    alpha_lr: float = 0.1
    """Of the gates."""
    l1: float = 0.05
    """Weight of the sum of all |gate|; a gate nothing depends on is zero after 1 / (alpha_lr l1) steps."""
    unit_ms: Mapping[str, float] | None = None
    """Time one unit of each group takes; the penalty follows it, its mean over all units being `l1`."""
    train_weights: bool = True
    """False: the gates alone are trained."""
    train_statistics: bool = False
    """Whether batch norms use and update the statistics of each batch."""
    auxiliary: float = 10.0
    """Weight of the second copy's loss in RARTS; its learning rate is lower by as much."""
    coupling: float = 4.0
    """How strongly RARTS holds its two copies together; lr coupling / (1 - momentum) must stay below 1."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_images", "lr", "alpha_lr"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} {getattr(self, name)!r} of a search for gates: must be above 0")
        for name in ("l1", "weight_decay", "auxiliary", "coupling"):
            if not getattr(self, name) >= 0:
                raise ConfigError(
                    f"{name} {getattr(self, name)!r} of a search for gates: must not be below 0"
                )
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum {self.momentum!r} of a search for gates: must be in 0..1")


Score = Callable[[nn.Module, Sequence[Group], Sequence[Batch], ScoreSettings, int, Progress], UnitScores]


@dataclass(frozen=True)
class Scores:
    """A rule that says how much each unit of a network is needed."""

    name: str
    summary: str
    score: Score
    """Gets network, groups, batches, settings, seed and progress; leaves the network alone.

    The network is in eval mode, its attention is rewritten. Batches without labels are understood as the
    network understands them.

    Raises:
        ConfigError: the rule does not suit a group.
        DataError: it needs images and there are none.
    """
    needs_images: bool = True
    comparable: bool = True
    """Whether scores of one group can be held against those of another; if not, each is ranked by itself."""
