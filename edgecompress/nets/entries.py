"""What the zoo knows of a model: how to build it, what it eats, which layers the papers compress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from edgecompress.core.types import Preprocess


@dataclass(frozen=True)
class Entry:
    """One model of the zoo."""

    name: str
    summary: str
    build: Callable[[int], nn.Module]
    """Takes the number of classes, returns the network with random weights."""
    classes: int
    preprocess: Preprocess
    is_target: Callable[[str, nn.Module], bool]
    """Tells whether the papers compress the layer of that dotted name."""
    weights: Callable[[], Path] | None = None
    """Returns the checkpoint that comes with the package or an extra; None: bring your own.

    Raises:
        MissingPackage: the extra that carries the weights is not installed.
    """
    data: str | None = None
    """Data source to use when none is given: `fashion-mnist` for the embedded networks."""
