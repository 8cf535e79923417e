"""Where a gradient search stands, on disk: scores, Adam's moments, step and elasticity.

Noise and order of the images follow from seed and step, so there is nothing else to keep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from edgecompress.train.checkpoint import load_state, save_state


@dataclass
class Standing:
    """Where a search stands; changed by every step."""

    scores: Tensor
    tensors: dict[str, Tensor]
    """What else the optimiser keeps, by name."""
    step: int = 0
    """How many are done."""
    elasticity: float = 0.0
    pull: float = math.nan
    """How strongly the loss asks for more cost; with `grip`, smoothed."""
    grip: float = math.nan
    """How strongly an elasticity of 1 asks for less."""
    loss: float = math.nan
    """Of the last steps, smoothed."""


def save_standing(path: Path, standing: Standing, identity: str) -> None:
    """Writes a checkpoint whole or not at all; `identity` says of which search it is."""
    save_state(path, dict(vars(standing)), identity)


def load_standing(path: Path, identity: str) -> Standing:
    """Reads a checkpoint.

    Raises:
        ArtefactError: it is damaged, or of a search with another model, limit, data or settings.
    """
    return Standing(**load_state(path, identity, of="search"))
