"""Least summed sensitivity under the budget, over all layers, families and ranks at once."""

from __future__ import annotations

import numpy as np

from edgecompress.search.allocate import Front, sweep
from edgecompress.search.contract import Choices, Problem, Selection
from edgecompress.search.knob import unreachable


def problem_front(problem: Problem) -> Front:
    """Returns the front of a problem; item 0 of every layer is the dense layer."""
    costs = [
        np.array([problem.dense_cost(o.layer), *map(problem.cost, o.candidates)]) for o in problem.options
    ]
    errors = [np.array([0.0, *o.errors]) for o in problem.options]
    return sweep(costs, errors)


def choices_at(problem: Problem, front: Front, point: int) -> Choices:
    """Returns the candidates of a point of the front."""
    picked = zip(problem.options, front.picks(point), strict=True)
    return {o.layer.name: o.candidates[item - 1] for o, item in picked if item > 0}


def select(problem: Problem) -> Choices:
    """Returns the point of the front that uses the budget best."""
    front = problem_front(problem)
    point = front.within(problem.limit - problem.fixed_cost)
    if point is None:
        raise unreachable(problem, float(front.costs[0]) + problem.fixed_cost)
    return choices_at(problem, front, point)


SELECTION = Selection(
    "exact", "least predicted loss over all families and ranks at once", select, needs_errors=True
)
