"""Measures many files on one device: in random order, with a reference in between that cancels drift.

A file's time is its ratio to the reference right before and after it, times what the reference takes. So a
phone that becomes hot, or a machine that becomes busy, changes little, and a build that goes on another day
is on the same scale. Emulated figures are exact: there is nothing to cancel, and several run side by side.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from edgecompress.core.device import Device
from edgecompress.core.measurement import Burst, Conditions, Interval
from edgecompress.core.statistics import check_alike
from edgecompress.devices.contract import BurstSize, Driver, Options, Session
from edgecompress.devices.protocol import orders
from edgecompress.devices.validity import doubts_of_ratios
from edgecompress.errors import ExportError

BATCH = 16
"""Files that are measured in turns; more would be too much memory for large ones."""
STRETCH = 4
"""Files between two bursts of the reference."""


@dataclass(frozen=True)
class Effort:
    """How much a file is measured."""

    rounds: int
    burst: BurstSize


IN_PROCESS = Effort(7, BurstSize(min_runs=5, min_seconds=0.015, warmup_seconds=0.004))
NEW_PROCESS = Effort(3, BurstSize(min_runs=10, min_seconds=0.15, warmup_seconds=0.1))
"""Where every burst starts a program, which takes longer than the burst."""


@dataclass(frozen=True)
class Timing:
    """What one file takes."""

    median_ms: float
    interval_ms: Interval | None
    """None: exact."""
    runs: int
    doubts: tuple[str, ...] = ()
    """Why it is not valid; empty where it is."""


@dataclass(frozen=True)
class Place:
    """A device, and how to reach it."""

    device: Device
    driver: Driver
    options: Options
    suffix: str
    """Of the files it is given."""
    alike: Conditions | None = None
    """What the conditions must be, if it is known."""

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Opens the device.

        Raises:
            ConfigError: it is no longer what it was.
            DeviceError: it cannot be reached.
        """
        with self.driver.open(self.device, self.options) as session:
            if self.alike is not None:
                check_alike(self.alike, session.conditions)
            yield session

    def on_cores(self, cores: tuple[int, ...]) -> Place:
        """Returns the place on these cores."""
        return replace(self, options=replace(self.options, cores=cores))

    def fixed(self, conditions: Conditions) -> Place:
        """Returns the place with conditions that must stay."""
        return replace(self.on_cores(conditions.cores), alike=conditions)


Write = Callable[[Path], None]
"""Writes a file that is to be measured."""


@dataclass(frozen=True)
class Job:
    """A file to be measured."""

    name: str
    """What errors call it: the key of its block, or network and plan."""
    write: Write

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Says of a file that cannot be written or run what is in it."""
        try:
            yield
        except ExportError as error:
            raise ExportError(f"{self.name}: {error}") from None


def steady_ms(place: Place, folder: Path, write: Write) -> float:
    """Returns what one file takes now, measured for longer than others: much depends on it."""
    file = folder / f"steady{place.suffix}"
    write(file)
    with place.session() as session:
        if session.conditions.provenance == "emulated":
            return session.burst(file, IN_PROCESS.burst).center_ms
        session.settle()
        session.load(file)
        effort = NEW_PROCESS if session.fresh_process else IN_PROCESS
        size = replace(effort.burst, min_seconds=4 * effort.burst.min_seconds, warmup_seconds=0.3)
        return statistics.median(session.burst(file, size).center_ms for _ in range(effort.rounds))


def exact_timings(place: Place, folder: Path, jobs: Sequence[Job]) -> Iterator[tuple[int, Timing]]:
    """Yields what files take where figures are exact, each with its position, as soon as it is known."""

    def timed(numbered: tuple[int, Job]) -> tuple[int, Timing]:
        position, job = numbered
        file = folder / f"{position}{place.suffix}"
        try:
            with job.named():
                job.write(file)
                burst = session.burst(file, IN_PROCESS.burst)
        finally:
            file.unlink(missing_ok=True)
        return position, Timing(burst.center_ms, None, burst.runs)

    with place.session() as session, ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            yield from pool.map(timed, enumerate(jobs))
        finally:
            pool.shutdown(cancel_futures=True)


def relative_timings(
    place: Place, folder: Path, jobs: Sequence[Job], reference: Job, reference_ms: float, *, seed: int
) -> Iterator[tuple[int, Timing]]:
    """Yields what files take by their ratio to the reference, each with its position, batch by batch."""
    rng = random.Random(seed)
    for start in range(0, len(jobs), BATCH):
        with place.session() as session:
            first, *others = _written(folder, place.suffix, [reference, *jobs[start : start + BATCH]])
            found = _batch(session, first, others, reference_ms, seed=rng.getrandbits(32))
        for written in (first, *others):
            written.file.unlink()
        yield from enumerate(found, start)


@dataclass(frozen=True)
class _Written:
    """A file that is there to be measured."""

    job: Job
    file: Path


def _written(folder: Path, suffix: str, jobs: Sequence[Job]) -> list[_Written]:
    written = [_Written(job, folder / f"{position}{suffix}") for position, job in enumerate(jobs)]
    for one in written:
        with one.job.named():
            one.job.write(one.file)
    return written


def _batch(
    session: Session, reference: _Written, files: Sequence[_Written], reference_ms: float, *, seed: int
) -> list[Timing]:
    effort = NEW_PROCESS if session.fresh_process else IN_PROCESS
    session.load(reference.file)
    ratios: list[list[float]] = [[] for _ in files]
    found: list[list[Burst]] = [[] for _ in files]
    for order in orders(len(files), effort.rounds, seed):
        before = session.burst(reference.file, effort.burst).center_ms
        for start in range(0, len(order), STRETCH):
            stretch = order[start : start + STRETCH]
            bursts = [_burst(session, files[position], effort.burst) for position in stretch]
            after = session.burst(reference.file, effort.burst).center_ms
            for position, burst in zip(stretch, bursts, strict=True):
                ratios[position].append(burst.center_ms / ((before + after) / 2))
                found[position].append(burst)
            before = after
    return [_timing(own, bursts, reference_ms) for own, bursts in zip(ratios, found, strict=True)]


def _burst(session: Session, written: _Written, size: BurstSize) -> Burst:
    with written.job.named():
        session.load(written.file)  # anew: one copy may lie better in memory than another
        return session.burst(written.file, size)


def _timing(ratios: Sequence[float], bursts: Sequence[Burst], reference_ms: float) -> Timing:
    """Returns the median; the least and the greatest of n bursts hold it in all but 2 of 2^n cases."""
    confidence = 1 - 2.0 ** (1 - len(ratios))
    low, high = min(ratios) * reference_ms, max(ratios) * reference_ms
    interval = Interval(low=low, high=high, confidence=confidence)
    runs = sum(burst.runs for burst in bursts)
    doubts = doubts_of_ratios(ratios, bursts)
    return Timing(statistics.median(ratios) * reference_ms, interval, runs, doubts)


def seconds_per_file(place: Place, macs: float) -> float:
    """Guesses how long one file will take, for forecasts."""
    if place.device.emulation is not None:
        return (0.4 + 4e-8 * macs) / (os.cpu_count() or 1)
    phone = not place.driver.name.startswith("local")
    effort, overhead_s = (NEW_PROCESS, 0.6) if phone else (IN_PROCESS, 0.01)
    run_s = macs / 2e10 * (4 if phone else 1)
    burst_s = max(effort.burst.min_seconds, effort.burst.min_runs * run_s) + effort.burst.warmup_seconds
    return effort.rounds * (1 + 1 / STRETCH) * (burst_s + overhead_s)
