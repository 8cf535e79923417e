"""How long to measure: presets by name, from a first impression to the rules of MLPerf Mobile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgecompress.core.plugins import pick


@dataclass(frozen=True)
class Preset:
    """How much is measured of every file."""

    name: str
    summary: str
    min_runs: int
    """Counted runs per file, at least."""
    min_seconds: float
    """Spent in counted runs per file, at least."""
    rounds: int
    """Bursts per file. In a round every file has its turn once; short bursts in many rounds find a
    difference sooner than long ones in few, as other programs come and go (bench_protocol.py)."""
    process_rounds: int
    """The same where every burst starts a process on the device, which costs a second or more."""
    warmup_seconds: float
    """Uncounted runs per file before the first round, and at the start of every such process."""
    score: Literal["median", "p90"]
    """The latency to quote."""


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "quick",
            "at least 50 runs and 4 s per file in 40 rounds",
            min_runs=50,
            min_seconds=4.0,
            rounds=40,
            process_rounds=8,
            warmup_seconds=0.5,
            score="median",
        ),
        Preset(
            "standard",
            "at least 200 runs and 10 s per file in 50 rounds",
            min_runs=200,
            min_seconds=10.0,
            rounds=50,
            process_rounds=10,
            warmup_seconds=1.0,
            score="median",
        ),
        Preset(
            "mlperf",
            "at least 1024 runs and 60 s per file, quoting the 90th percentile, as MLPerf Mobile does",
            min_runs=1024,
            min_seconds=60.0,
            rounds=100,
            process_rounds=12,
            warmup_seconds=2.0,
            score="p90",
        ),
    )
}
"""By name."""


def pick_preset(name: str) -> Preset:
    """Returns a preset by name.

    Raises:
        ConfigError: there is no such preset; the message lists the known ones.
    """
    return pick(PRESETS, name, what="preset")
