"""How the learning rate goes: a share of the largest one, by how far training is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from edgecompress.errors import ConfigError

EXAMPLES = "cosine, linear, constant, steps:0.5,0.75:0.1 or plateau:10:0.1:0.1"


@dataclass(frozen=True)
class Plateau:
    """The rate falls when no epoch was the best for a while, and training ends when it would fall too low."""

    patience: int
    """Epochs without a better one that are put up with."""
    factor: float
    least: float
    """Smallest share of the first rate."""


@dataclass(frozen=True)
class Schedule:
    """A course of the learning rate."""

    share: Callable[[float], float]
    """Of the largest rate, at a share of all steps from 0 to 1."""
    plateau: Plateau | None = None


def parse_schedule(text: str, *, warmup: float = 0.0) -> Schedule:
    """Reads `cosine`, `linear`, `constant`, `steps:AT,AT:FACTOR` or `plateau:PATIENCE:FACTOR:LEAST`.

    `warmup` is the share of all steps over which the rate rises from nothing.

    Raises:
        ConfigError: it is none of these.
    """
    if not 0 <= warmup < 1:
        raise ConfigError(f"warm-up {warmup:g}: must be a share of all steps, from 0 to below 1")
    name, *values = text.split(":")
    try:
        found = _KNOWN[name](*values)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"schedule {text!r}: not understood; write {EXAMPLES}") from None
    return Schedule(_warmed(found.share, warmup), found.plateau)


def _warmed(share: Callable[[float], float], warmup: float) -> Callable[[float], float]:
    def warmed(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        return share((progress - warmup) / (1 - warmup))

    return warmed


def _steps(places: str, factor: str) -> Schedule:
    falls, by = sorted(float(place) for place in places.split(",")), float(factor)
    if not all(0 < place < 1 for place in falls) or not 0 < by <= 1:
        raise ValueError("places and factor are shares")
    return Schedule(lambda progress: by ** sum(progress >= place for place in falls))


def _plateau(patience: str, factor: str, least: str) -> Schedule:
    found = Plateau(int(patience), float(factor), float(least))
    if found.patience < 1 or not 0 < found.factor < 1 or not 0 < found.least <= 1:
        raise ValueError("out of range")
    return Schedule(lambda progress: 1.0, found)


_KNOWN: dict[str, Callable[..., Schedule]] = {
    "cosine": lambda: Schedule(lambda progress: (1 + math.cos(math.pi * progress)) / 2),
    "linear": lambda: Schedule(lambda progress: 1 - progress),
    "constant": lambda: Schedule(lambda progress: 1.0),
    "steps": _steps,
    "plateau": _plateau,
}
