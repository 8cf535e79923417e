"""Where the loop of a search stands, what it works with, and where it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from edgecompress.core.measurement import Comparison
from edgecompress.core.progress import Progress
from edgecompress.core.search_results import Round
from edgecompress.devices.contract import Options as DeviceOptions
from edgecompress.pipeline.engine import Compressed
from edgecompress.pipeline.latency_costs import Clock
from edgecompress.pipeline.material import Material
from edgecompress.pipeline.strategies import Strategy
from edgecompress.search.contract import Choices, plan_hash

CLOSE = 0.03
"""How far a measured value may be above the target, and below it before the search gives time back."""


@dataclass(frozen=True)
class Loop:
    """What the loop works with."""

    strategy: Strategy
    material: Material
    clock: Clock | None
    device: DeviceOptions
    rounds: int | None
    """None: as usual, where the device is at hand."""
    preset: str
    seed: int
    progress: Progress
    max_drop: float | None = None
    """Where accuracy was asked for: time is then what it comes to, and nothing is corrected."""


@dataclass(frozen=True)
class Outcome:
    """Where the loop ended."""

    compressed: Compressed
    cost: float
    """Predicted by the table as it is."""
    met: bool
    reason: str | None
    steps: tuple[tuple[str, str], ...]
    seconds: dict[str, float]
    rounds: tuple[Round, ...] = ()
    dense_ms: float | None = None
    measured_ms: float | None = None
    comparison: Comparison | None = None
    doubts: tuple[str, ...] = ()
    """Why the milliseconds of both networks, or their comparison, are not valid."""
    not_measured: str | None = None

    @cached_property
    def hash(self) -> str:
        """Of the plan."""
        return plan_hash(self.compressed.choices)


@dataclass
class Standing:
    """The loop while it runs."""

    clock: Clock | None
    rounds: list[Round] = field(default_factory=list)
    plans: list[Choices] = field(default_factory=list)
    """Of the rounds."""
    steps: tuple[tuple[str, str], ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    reason: str | None = None


def meets(loop: Loop, measured: float, target: float) -> bool:
    """Whether what a device takes is what was asked for."""
    return loop.max_drop is not None or measured <= (1 + CLOSE) * target


def best(rounds: Sequence[Round]) -> int:
    """Returns the round that uses the target best: the slowest within it, or else the fastest."""
    order = sorted(range(len(rounds)), key=lambda at: rounds[at].measured_ms)
    met = [at for at in order if rounds[at].met]
    return met[-1] if met else order[0]


@contextlib.contextmanager
def timed(standing: Standing) -> Iterator[None]:
    """Adds what the body takes to the seconds of measuring."""
    start = time.perf_counter()
    yield
    spent = standing.seconds.get("measuring", 0.0) + time.perf_counter() - start
    standing.seconds["measuring"] = spent


def unmet(target: float, final_ms: float, standing: Standing) -> str:
    """Returns why a target is not met."""
    spent = f"{len(standing.rounds)} round{'' if len(standing.rounds) == 1 else 's'}"
    why = standing.reason or f"{spent} of search and correction did not find a faster plan"
    over = f"{final_ms / target - 1:.1%}".replace("%", " %")
    return f"the device takes {final_ms:.4g} ms, {over} more than the {target:.4g} asked for: {why}"
