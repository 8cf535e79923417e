"""Chooses widths and low-rank blocks by trial: which kind a network bears better is seen on images.

Errors of both are predicted in the same unit, but a prediction may be too hopeful for one kind: channels of
inverted bottlenecks go wrong together, which second moments do not see. So either kind is tried alone at the
same budget. What they really did to the outputs, over what was predicted, is the rate at which errors of
widths are exchanged for errors of blocks; rates around it are tried too. The best network wins, so that no
space is worse than a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import BudgetError
from edgecompress.pipeline.engine import few_images
from edgecompress.pipeline.evaluate import divergences, log_probabilities
from edgecompress.pipeline.joint import JointPrepared, built_jointly, joint_hash
from edgecompress.search.joint import Joint, JointProblem, choose_jointly

Judge = Callable[[Joint], float]
"""Tells how far a choice's network is from the dense one."""

AROUND = (1.0, 0.25, 4.0)
"""Times the rate found; errors add up otherwise together than alone."""


def choose_by_trial(problem: JointProblem, judge: Judge) -> Joint:
    """Returns the choice within the limit whose network is nearest to the dense one.

    Raises:
        BudgetError: the limit cannot be met.
    """
    alone = _alone(problem)
    if len(alone) < 2:
        return choose_jointly(problem)
    rate = _rate(problem, alone, judge)
    together = (choose_jointly(exchanged(problem, rate * around)) for around in AROUND)
    return min((*together, *alone), key=judge)


def on_one_scale(problem: JointProblem, judge: Judge) -> JointProblem:
    """Returns the problem with errors of widths in the unit of errors of blocks."""
    alone = _alone(problem)
    return exchanged(problem, _rate(problem, alone, judge)) if len(alone) == 2 else problem


def exchanged(problem: JointProblem, rate: float) -> JointProblem:
    """Returns the problem with errors of widths times a rate."""
    ladders = (replace(one, errors=tuple(rate * error for error in one.errors)) for one in problem.ladders)
    return replace(problem, ladders=tuple(ladders))


def trial_divergence(prepared: JointPrepared, found: Joint) -> float:
    """Returns how far a choice's network is from the dense one on a few images, before any repair."""

    def compute() -> float:
        setting = prepared.low_rank.setting
        batches = [*few_images(setting.calibration), *few_images(setting.selection)]
        network = built_jointly(prepared, found, NO_PROGRESS).module
        dense = log_probabilities(prepared.narrowable.module, batches)
        return float(divergences(network, batches, dense).mean())

    return prepared.low_rank.memo.number(f"trial {joint_hash(found)}", compute)


def _alone(problem: JointProblem) -> tuple[Joint, ...]:
    """Returns the choices of widths only and of blocks only, where they meet the limit and differ."""
    whole = tuple(replace(one, widths=one.widths[:1], errors=one.errors[:1]) for one in problem.ladders)
    found = list(_reachable(replace(problem, options=()), replace(problem, ladders=whole)))
    return tuple(found) if len(found) == 2 and found[0] != found[1] else tuple(found[:1])


def _reachable(*problems: JointProblem) -> Iterator[Joint]:
    for problem in problems:
        try:
            yield choose_jointly(problem)
        except BudgetError:
            continue


def _rate(problem: JointProblem, alone: tuple[Joint, ...], judge: Judge) -> float:
    """Returns how much worse widths turn out than predicted, against blocks."""
    widths, blocks = (judge(one) / max(problem.error(one), 1e-12) for one in alone)
    return widths / max(blocks, 1e-12)
