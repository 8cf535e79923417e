"""The options of a topology search, checked before anything is read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgecompress.core.genotype import SpaceName, check_space, check_stack, chosen_operations
from edgecompress.errors import ConfigError
from edgecompress.search.topology import Method

STEPS = 60


@dataclass(frozen=True)
class Cells:
    """What is searched."""

    space: SpaceName
    operations: tuple[str, ...]
    channels: int
    cells: int


def checked_cells(space: str, operations: tuple[str, ...], channels: int, cells: int) -> Cells:
    """Returns what to search.

    Raises:
        ConfigError: there is no such space or operation, or so many cells cannot be stacked.
    """
    known = check_space(space)
    if channels < 1:
        raise ConfigError(f"{channels} channels: there must be at least 1")
    try:
        check_stack(known, cells)
    except ValueError as error:
        raise ConfigError(f"--cells: {error}") from None
    return Cells(known, chosen_operations(known, operations), channels, cells)


def checked_method(name: str) -> Method:
    """Returns how to search.

    Raises:
        ConfigError: there is no such method.
    """
    known: dict[str, Method] = {"rarts": "rarts", "darts1": "darts1"}
    if name not in known:
        raise ConfigError(f"method {name!r} is not known; known are: {', '.join(known)}")
    return known[name]


def checked_gamma(gamma: float | None, timed_by: str | None) -> float | None:
    """Returns the weight of milliseconds; `timed_by` is the table or device that knows them.

    Raises:
        ConfigError: it is negative, or there are no milliseconds.
    """
    if gamma is not None and timed_by is None:
        raise ConfigError("--gamma: weighs milliseconds; pass --latency-table or --device as well")
    if gamma is not None and not 0 <= gamma < math.inf:
        raise ConfigError(f"--gamma {gamma:g}: must be 0 or more")
    return gamma


def count_steps(steps: int | None, epochs: int | None, per_half: int, batch: int) -> int:
    """Returns how many steps to make.

    Raises:
        ConfigError: none are left, or both numbers are given.
    """
    if steps is not None and epochs is not None:
        raise ConfigError("--steps and --epochs: give one of them")
    wanted = STEPS if steps is None else steps
    if epochs is not None:
        wanted = epochs * max(1, per_half // batch)
    if wanted < 1:
        raise ConfigError(f"{wanted} steps: there must be at least 1")
    return wanted
