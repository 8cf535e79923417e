"""The whole trade-off at once: plans no other beats by prediction, tried on selection images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch.nn.functional as F

from edgecompress.core.progress import Progress
from edgecompress.core.search_results import FrontPoint
from edgecompress.core.types import Metric
from edgecompress.pipeline.engine import build, few_images
from edgecompress.pipeline.evaluate import log_probabilities
from edgecompress.pipeline.preparation import Prepared
from edgecompress.search.contract import Choices, Problem, plan_hash
from edgecompress.search.ranks.exact import choices_at, problem_front

POINTS = 20


def front_points(prepared: Prepared, metric: Metric, progress: Progress) -> tuple[FrontPoint, ...]:
    """Returns plans from the fastest to nearly dense, by rising cost, each with how it answers.

    They are not repaired: what is lost here is an upper bound of what a repaired network loses.
    """
    problem = prepared.problem(metric, prepared.setting.costs[metric].dense)
    setting = prepared.setting
    batches = few_images(setting.selection or setting.calibration)
    reference = log_probabilities(setting.model, batches)

    def point(found: tuple[float, float, Choices]) -> FrontPoint:
        cost, error, choices = found
        answers = log_probabilities(build(prepared, choices), batches)
        return FrontPoint(
            cost=cost,
            share=cost / setting.costs[metric].dense,
            predicted_loss=error,
            divergence=float(F.kl_div(answers, reference, log_target=True, reduction="batchmean")),
            agreement=float((answers.argmax(1) == reference.argmax(1)).float().mean()),
            choices=tuple((name, one.family, one.ranks) for name, one in choices.items()),
        )

    return tuple(
        prepared.memo.record(f"front {plan_hash(found[2])}", FrontPoint, partial(point, found))
        for found in progress.track(list(_plans(problem)), "front")
    )


def _plans(problem: Problem) -> Iterator[tuple[float, float, Choices]]:
    """Yields cost, error and choices of points at equal ratios of cost."""
    front = problem_front(problem)
    totals = front.costs + problem.fixed_cost
    spaced = np.geomspace if totals[0] > 0 else np.linspace  # a fitted rest may be below 0
    wanted = spaced(totals[0], totals[-1], POINTS)
    places = dict.fromkeys(int(np.abs(totals - each).argmin()) for each in wanted)
    for place in places:
        yield float(totals[place]), float(front.errors[place]), choices_at(problem, front, place)
