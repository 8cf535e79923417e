"""The front of all ways to spend a budget: exact where it says so, honest about cost everywhere."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import problem_of

from edgecompress.search.allocate import sweep
from edgecompress.search.ranks.exact import choices_at, problem_front, select

numbers = st.floats(0, 100) | st.integers(0, 12).map(float)  # whole numbers give ties
items = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5)
tables = st.lists(items, min_size=1, max_size=5)


def front_of(table, **options):
    costs = [np.array([cost for cost, _ in layer]) for layer in table]
    errors = [np.array([error for _, error in layer]) for layer in table]
    return sweep(costs, errors, **options)


def all_sums(table):
    """Returns cost and error of every way to take one item per layer."""
    ways = itertools.product(*table)
    return [(sum(cost for cost, _ in way), sum(error for _, error in way)) for way in ways]


def best_error(sums, limit):
    return min((error for cost, error in sums if cost <= limit * (1 + 1e-12)), default=None)


@given(table=tables, data=st.data())
def test_the_front_equals_trying_everything(table, data):
    front, sums = front_of(table), all_sums(table)
    limits = [*sorted({cost for cost, _ in sums}), data.draw(st.floats(0, 600)), -1.0, math.inf]
    for limit in limits:
        point, best = front.within(limit), best_error(sums, limit)
        assert (point is None) == (best is None)
        if point is not None:
            assert front.errors[point] == pytest.approx(best, rel=1e-12, abs=1e-12)


@given(table=tables, max_states=st.sampled_from([2, 3, 10, 8192]))
def test_a_point_costs_what_its_picks_cost_and_no_other_beats_it(table, max_states):
    front = front_of(table, max_states=max_states)
    for point, (cost, error) in enumerate(zip(front.costs, front.errors, strict=True)):
        picked = [layer[item] for layer, item in zip(table, front.picks(point), strict=True)]
        assert cost == pytest.approx(sum(c for c, _ in picked), rel=1e-12, abs=1e-12)
        assert error == pytest.approx(sum(e for _, e in picked), rel=1e-12, abs=1e-12)
    assert np.all(np.diff(front.costs) > 0)
    assert np.all(np.diff(front.errors) < 0)


def smooth_table(layers, points, seed):
    """Returns items as ranks give them: the error falls as the cost rises."""
    rng = np.random.default_rng(seed)
    table = []
    for scale, reach in zip(rng.uniform(1, 100, layers), rng.uniform(5, 20, layers), strict=True):
        costs = np.sort(rng.uniform(1, 50, points))
        table.append([(float(c), float(scale * np.exp(-c / reach))) for c in costs])
    return table


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_states", [20, 100])
def test_thinning_loses_at_most_one_slot_of_cost_per_layer(seed, max_states):
    table = smooth_table(6, 16, seed)
    exact, thin = front_of(table, max_states=10**6), front_of(table, max_states=max_states)
    assert len(exact.costs) > max_states >= len(thin.costs) - 1
    assert (thin.costs[0], thin.errors[-1]) == (exact.costs[0], exact.errors[-1])  # both ends are kept
    slack = len(table) * (exact.costs[-1] - exact.costs[0]) / (max_states - 1)
    for limit in np.linspace(exact.costs[0], exact.costs[-1], 50):
        point, tighter = thin.within(limit), exact.within(limit - slack)
        assert thin.costs[point] <= limit * (1 + 1e-9)
        if tighter is not None:
            assert thin.errors[point] <= exact.errors[tighter] + 1e-9


def test_a_limit_is_met_exactly_whatever_the_order_of_the_sum():
    table = [[(0.1, 1.0)], [(0.2, 1.0)], [(0.3, 1.0)]]
    for order in itertools.permutations(table):
        assert front_of(order).within(0.6) == 0
        assert front_of(order).within(0.6 - 1e-9) is None


def test_the_edges_of_a_front():
    front = front_of([[(1.0, 5.0), (2.0, 3.0), (4.0, 0.0)]])
    assert [front.within(limit) for limit in (-math.inf, 0.0, 0.999, 1.0, 1.5, 3.999, 4.0, math.inf)] == [
        *(None, None, None),
        *(0, 0, 1, 2, 2),
    ]


def test_items_that_others_beat_are_never_taken():
    front = front_of([[(2.0, 1.0), (1.0, 1.0), (1.0, 2.0), (3.0, 1.0)]])
    assert [front.picks(point) for point in range(len(front.costs))] == [[1]]


def test_a_free_item_without_error_beats_all():
    assert len(front_of([[(5.0, 3.0), (0.0, 0.0)], [(0.0, 0.0)]]).costs) == 1


def test_nothing_to_choose_costs_nothing():
    front = sweep([], [])
    assert (front.within(0.0), front.within(-1.0), front.picks(0)) == (0, None, [])


@pytest.mark.parametrize("metric", ["macs", "params"])
@pytest.mark.parametrize("share", [0.35, 0.6, 0.9])
def test_the_selection_is_the_best_point_of_the_problem_within_its_limit(metric, share):
    problem = problem_of(metric=metric, share=share, families=("S2", "S4(1)"), with_errors=True)
    front, choices = problem_front(problem), select(problem)
    totals = [problem.total(choices_at(problem, front, point)) for point in range(len(front.costs))]
    assert totals == pytest.approx(front.costs + problem.fixed_cost)
    within = [t for t in totals if t <= problem.limit]
    assert problem.total(choices) == max(within)  # errors fall with cost, so the most that fits is the best
