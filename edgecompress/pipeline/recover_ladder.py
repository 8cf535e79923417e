"""Climbs the levels of a recovery: each starts from the best network so far, and is kept or not."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from edgecompress.core.memo import Memo
from edgecompress.core.recover_results import Rung, Standing
from edgecompress.core.types import Record
from edgecompress.data.readers.synthetic import SyntheticSet
from edgecompress.data.sources import ImageSet
from edgecompress.pipeline.recover_judge import Seen, is_better
from edgecompress.pipeline.recover_levels import Level
from edgecompress.pipeline.recover_scene import Attempt, Scene
from edgecompress.train.parallel import same_everywhere

ON_THE_WAY = 0.2
"""What a level's share of the minutes is multiplied by where a higher one follows."""


@dataclass(frozen=True)
class Climbed:
    """The best network and how it came about."""

    module: nn.Module
    ladder: tuple[Rung, ...]
    seconds: dict[str, float]


class _Kept(Record):
    """What was decided about a level; a recovery that goes on decides the same."""

    after: Standing
    kept: bool


def climb(scene: Scene, levels: Sequence[Level], passed: Mapping[str, str]) -> Climbed:
    """Tries levels in their order, but for those passed by, and returns the best network."""
    best, rungs, seconds = scene.start, list[Rung](), dict[str, float]()
    seen = scene.judge.seen(best)
    for level in levels:
        began = time.perf_counter()
        if level.name in passed:
            rungs.append(_skipped(level, seen.standing, passed[level.name]))
            continue
        attempt = level.run(scene, copy.deepcopy(best))
        found = scene.judge.seen(attempt.module)
        decided = _decided(scene.memo, level, attempt, found, seen)
        spent = same_everywhere(time.perf_counter() - began)
        rungs.append(_rung(level, attempt, seen.standing, decided, spent))
        seconds[level.name] = spent
        if decided.kept:
            best, seen = attempt.module, found
            scene.climbed.append(level.name)
    return Climbed(best, tuple(rungs), seconds)


def passed_by(levels: Sequence[Level], images: ImageSet, synthetic: str | None) -> dict[str, str]:
    """Returns the levels on the way to the highest that are not worth their time, each with the reason."""
    on_the_way = {level.name for level in levels[:-1]}
    made = isinstance(images, SyntheticSet)
    if "synthetic" in on_the_way and synthetic is None and not made:
        why = "passed by, as there are real images; --level synthetic or --synthetic RUN asks for it"
        return {"synthetic": why}
    if "mimic" in on_the_way and made and "synthetic" in {level.name for level in levels}:
        return {"mimic": "passed by: its images are synthetic, and level synthetic has them, too"}
    return {}


def _decided(memo: Memo, level: Level, attempt: Attempt, found: Seen, before: Seen) -> _Kept:
    return memo.record(
        f"{level.name} kept",
        _Kept,
        lambda: _Kept(after=found.standing, kept=attempt.changed and is_better(found, before)),
    )


def _skipped(level: Level, before: Standing, why: str) -> Rung:
    return Rung(level=level.name, outcome=why, gain=None, minutes=0.0, kept=False, before=before, after=None)


def _rung(level: Level, attempt: Attempt, before: Standing, decided: _Kept, seconds: float) -> Rung:
    after = decided.after
    gain = None if after.top1 is None or before.top1 is None else after.top1 - before.top1
    verdict = "kept: " if decided.kept else "dropped: " if attempt.changed else ""
    return Rung(
        level=level.name,
        outcome=f"{verdict}{attempt.told}; {_change(before, after)}",
        gain=gain,
        minutes=round(seconds / 60, 3),
        kept=decided.kept,
        before=before,
        after=after,
        steps=attempt.steps,
    )


def _change(before: Standing, after: Standing) -> str:
    told = f"divergence {before.divergence:.4f} -> {after.divergence:.4f}"
    if before.top1 is None or after.top1 is None:
        return told
    return f"top-1 {before.top1:.2f} -> {after.top1:.2f}, {told}"


def deal_out(amount: float, levels: Sequence[Level]) -> dict[str, float]:
    """Returns what each level that trains gets of seconds or steps; it adds up to all of them.

    The highest gets most: one long course of the learning rate is worth more than several short ones.
    """
    trained = [level for level in levels if level.share]
    weights = {level.name: level.share * (1.0 if level is trained[-1] else ON_THE_WAY) for level in trained}
    whole = sum(weights.values())
    return {name: amount * weight / whole for name, weight in weights.items()}
