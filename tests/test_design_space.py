"""Pruning of a design space: by cost grid, by predicted error, by families that are nowhere best."""

import dataclasses

import numpy as np
import pytest
from rank_problems import problem_of

from edgecompress.search.design_space import prune

PROBLEM = problem_of(with_errors=True, methods=("lowrank", "tucker2"))


def by_family(options):
    found = {}
    for candidate in options.candidates:
        found.setdefault(candidate.family, []).append(candidate)
    return found


@pytest.mark.parametrize("metric", ["macs", "ms"])
def test_nothing_costs_as_much_as_its_layer(metric):
    problem = problem_of(metric=metric, with_errors=True)
    pruned = prune(problem, least_candidates=0)
    for options in pruned.options:
        assert all(problem.cost(c) < problem.dense_cost(options.layer) for c in options.candidates)


@pytest.mark.parametrize("metric", ["macs", "params", "ms"])
def test_a_grid_keeps_the_best_candidate_within_each_cost(metric):
    problem = problem_of(metric=metric, with_errors=True)
    pruned = prune(problem, gamma=(0.5, 0.9, 0.1), least_candidates=10**6)
    for before, after in zip(problem.options, pruned.options, strict=True):
        dense = problem.dense_cost(before.layer)
        error = dict(zip(before.candidates, before.errors, strict=True))
        for family, candidates in by_family(before).items():
            for share in (0.5, 0.6, 0.7, 0.8, 0.9):
                within = [c for c in candidates if problem.cost(c) <= share * dense * (1 + 1e-9)]
                kept = by_family(after).get(family, [])
                assert not within or min(error[c] for c in within) in {error[c] for c in kept}
            assert len(by_family(after).get(family, [])) <= 5


def test_in_macs_the_grid_is_the_papers_floor_of_the_rank():
    problem = problem_of(families=("S4(1)",))  # no errors either
    (options, *_) = prune(problem, gamma=(0.3, 0.7, 0.2)).options
    dense, one = problem.dense_cost(options.layer), problem.cost(problem.options[0].candidates[0])
    ranks = [int(share * dense / one + 1e-9) for share in (0.3, 0.5, 0.7)]
    assert [c.ranks[0] for c in options.candidates] == ranks


def test_tau_bounds_the_predicted_error():
    tau = float(np.median([e for o in PROBLEM.options for e in o.errors]))
    pruned = prune(PROBLEM, tau=tau)
    assert 0 < max(e for o in pruned.options for e in o.errors) <= tau


def test_errors_stay_with_their_candidates():
    pruned = prune(PROBLEM, gamma=(0.2, 0.9, 0.05), tau=0.5, max_families=2, least_candidates=5)
    for before, after in zip(PROBLEM.options, pruned.options, strict=True):
        error = dict(zip(before.candidates, before.errors, strict=True))
        assert [error[c] for c in after.candidates] == list(after.errors)


def test_fewer_families_keep_the_best_error_at_most_costs():
    pruned = prune(PROBLEM, max_families=3, least_candidates=0)
    for before, after in zip(PROBLEM.options, pruned.options, strict=True):
        assert len(by_family(after)) <= 3
        for level in (0.25, 0.5, 0.75):
            bound = level * PROBLEM.dense_cost(before.layer)
            assert least(after, bound) <= 1.25 * least(before, bound)


def least(options, bound):
    pairs = zip(options.candidates, options.errors, strict=True)
    return min(error for c, error in pairs if PROBLEM.cost(c) <= bound)


def test_as_many_candidates_are_kept_as_asked_for():
    pruned = prune(PROBLEM, max_families=1, least_candidates=60)
    for before, after in zip(PROBLEM.options, pruned.options, strict=True):
        paying = [c for c in before.candidates if PROBLEM.cost(c) < PROBLEM.dense_cost(before.layer)]
        assert len(after.candidates) >= min(60, len([c for c in paying if c.method == "lowrank"]))


def test_of_candidates_without_a_common_factorisation_only_undominated_ones_stay():
    pruned = prune(PROBLEM, least_candidates=10**6)
    for options in pruned.options:
        costs = [PROBLEM.cost(c) for c in options.candidates]
        for c, cost, error in zip(options.candidates, costs, options.errors, strict=True):
            if c.method == "tucker2":
                assert not any(o <= cost and e < error for o, e in zip(costs, options.errors, strict=True))


def test_what_must_be_kept_is_kept():
    keep = {o.layer.name: o.candidates[0] for o in PROBLEM.options}
    pruned = prune(PROBLEM, gamma=(0.8, 0.9, 0.1), max_families=1, least_candidates=0, keep=keep)
    assert all(keep[o.layer.name] in o.candidates for o in pruned.options)


def test_a_layer_without_candidates_left_stays_in_the_problem():
    pruned = prune(PROBLEM, tau=-1.0)
    assert [o.candidates for o in pruned.options] == [()] * len(PROBLEM.options)
    assert pruned.total({}) == PROBLEM.total({})
    assert dataclasses.replace(pruned, options=PROBLEM.options) == PROBLEM
