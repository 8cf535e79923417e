"""Where a gradient search stands, on disk: scores, Adam's moments, step and elasticity.

Noise and order of the images follow from seed and step, so there is nothing else to keep.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgecompress.core.store import replacing
from edgecompress.errors import ArtefactError


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
    told = {"identity": identity, **{name: getattr(standing, name) for name in _NUMBERS}}
    tensors = {_SCORES: standing.scores.detach(), **standing.tensors}
    with replacing(path) as temporary:
        save_file({k: v.clone() for k, v in tensors.items()}, temporary, {"standing": json.dumps(told)})


_NUMBERS = ("step", "elasticity", "pull", "grip", "loss")
_SCORES = "scores"


def load_standing(path: Path, identity: str) -> Standing:
    """Reads a checkpoint.

    Raises:
        ArtefactError: it is damaged, or of a search with another model, limit, data or settings.
    """
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads(file.metadata()["standing"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            scores = tensors.pop(_SCORES)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ArtefactError(f"{path}: not a checkpoint of a search: {error}; remove it") from None
    if told["identity"] != identity:
        raise ArtefactError(f"{path}: of another search; remove it or give another directory")
    return Standing(scores, tensors, *(told[name] for name in _NUMBERS))
