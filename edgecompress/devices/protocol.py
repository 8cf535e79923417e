"""How files are measured, on every device alike: in turns, in short bursts, with a judgement at the end.

1. Every session settles; every file is loaded, so that a bad one is found before anything is measured.
2. Every file is warmed up.
3. In every round each file has one burst. Orders are random, and each comes reversed as well, so no file
   has a better place. What slows a whole round slows all files alike.
   Where a burst is exact, one per file is enough.
4. Before its burst a file is loaded anew: one copy may lie better in memory than another.
5. Each file's bursts are judged: on a busy or hot device the result says so, it does not refuse.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgecompress.core.measurement import Burst, Environment, FileFacts, Measurement
from edgecompress.core.presets import Preset
from edgecompress.core.progress import Progress
from edgecompress.core.statistics import summarise
from edgecompress.core.store import sha256_of
from edgecompress.devices.contract import BurstSize, Loaded, Session
from edgecompress.devices.validity import judge
from edgecompress.errors import ConfigError, ExportError

RELOAD_WARMUP_S = 0.05
"""Uncounted runs of a file loaded anew; the clock is up by then, only caches have to fill."""


@dataclass
class _Subject:
    """A file and what is known of it so far."""

    path: Path
    session: Session
    facts: FileFacts
    loads: list[Loaded] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    warmup_runs: int = 0


def measure(
    files: Sequence[tuple[Path, Session]], preset: Preset, *, seed: int, profile: bool, progress: Progress
) -> tuple[Measurement, ...]:
    """Measures files together, each in its session, and returns them in the order given.

    Bursts of one index come from one round. `profile` adds the time per operator, from a pass of its
    own afterwards.

    Raises:
        ConfigError: no file is given, or one twice for the same session.
        ExportError: a file is missing, or its runtime cannot read or run it.
        DeviceError: a device does not answer.
    """
    subjects = _subjects(files)
    sessions = {id(session): session for _, session in files}
    remarks = {key: session.settle() for key, session in sessions.items()}
    for subject in progress.track(subjects, "loading"):
        subject.loads.append(subject.session.load(subject.path))
    for subject in progress.track(subjects, "warming up"):
        _warm_up_(subject, preset)
    before = {key: session.environment() for key, session in sessions.items()}
    _measure_rounds_(subjects, preset, seed, progress)
    after = {key: session.environment() for key, session in sessions.items()}
    keys = [id(one.session) for one in subjects]
    return tuple(
        _measurement(one, preset, before[key], after[key], remarks[key], profile=profile)
        for one, key in zip(subjects, keys, strict=True)
    )


def _subjects(files: Sequence[tuple[Path, Session]]) -> list[_Subject]:
    if not files:
        raise ConfigError("nothing to measure; give at least one file")
    seen = [(path.absolute(), id(session)) for path, session in files]
    for index, (path, _) in enumerate(files):
        if seen[index] in seen[:index]:
            raise ConfigError(f"{path}: given twice; copy it under another name to compare it with itself")
    names = shortest_names([path for path, _ in files])
    return [
        _Subject(path, session, _facts(path, name))
        for (path, session), name in zip(files, names, strict=True)
    ]


def shortest_names(paths: Sequence[Path]) -> list[str]:
    """Returns the files' names, with as many directories before them as it takes to tell them apart."""
    parts = [path.absolute().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            return names
    raise AssertionError("whole paths tell files apart")


def _facts(path: Path, name: str) -> FileFacts:
    try:
        return FileFacts(name=name, path=str(path), sha256=sha256_of(path), size_bytes=path.stat().st_size)
    except FileNotFoundError:
        raise ExportError(f"{path}: there is no such file; export it first") from None
    except OSError as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror or error}") from None


def _warm_up_(subject: _Subject, preset: Preset) -> None:
    if not subject.session.fresh_process:  # there every process warms up for itself
        size = BurstSize(min_runs=1, min_seconds=preset.warmup_seconds, warmup_seconds=0.0)
        subject.warmup_runs = subject.session.burst(subject.path, size).runs


def _measure_rounds_(subjects: Sequence[_Subject], preset: Preset, seed: int, progress: Progress) -> None:
    """Fills in the bursts; files that are timed have equally many, so that each round has one of each."""
    slow = any(one.session.fresh_process for one in subjects)
    rounds = preset.process_rounds if slow else preset.rounds
    for order in progress.track(orders(len(subjects), rounds, seed), "measuring"):
        for subject in (subjects[index] for index in order):
            if not any(one.exact for one in subject.bursts):
                subject.bursts.append(_burst(subject, preset, rounds))


def orders(files: int, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """Returns the order of files in every round: random ones, each of which also comes reversed.

    The reverse comes at some other time: right after, files at the turn would have their two bursts
    side by side, both slow or both fast, and the two rounds would count as one.
    """
    rng, found = random.Random(seed), list[tuple[int, ...]]()
    for _ in range((rounds + 1) // 2):
        order = tuple(rng.sample(range(files), files))
        found += [order, order[::-1]]
    rng.shuffle(found)
    return found[:rounds]


def _burst(subject: _Subject, preset: Preset, rounds: int) -> Burst:
    fresh = subject.session.fresh_process
    if not fresh:
        subject.loads.append(subject.session.load(subject.path))
    size = BurstSize(
        min_runs=math.ceil(preset.min_runs / rounds),
        min_seconds=preset.min_seconds / rounds,
        warmup_seconds=preset.warmup_seconds if fresh else RELOAD_WARMUP_S,
    )
    return subject.session.burst(subject.path, size)


def _measurement(
    subject: _Subject,
    preset: Preset,
    before: Environment,
    after: Environment,
    remarks: tuple[str, ...],
    *,
    profile: bool,
) -> Measurement:
    return Measurement(
        file=subject.facts,
        conditions=subject.session.conditions,
        load_ms=_median([one.load_ms for one in subject.loads]),
        first_ms=_median([one.first_ms for one in subject.loads]),
        warmup_runs=subject.warmup_runs,
        bursts=tuple(subject.bursts),
        summary=summarise(subject.bursts),
        before=before,
        after=after,
        validity=judge(subject.bursts, preset, before, after, remarks),
        operators=subject.session.profile(subject.path) if profile else (),
        notes=subject.loads[0].notes,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
