"""ALDS against its definition: least largest error, for given slicings and over all of them."""

import itertools

import pytest
import torch
from rank_problems import conv, problem_of

from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.families import to_matrices
from edgecompress.search.ranks import alds


@pytest.fixture(scope="module")
def rows():
    problem = problem_of((conv("a", 4, 6), conv("b", 6, 5, stride=2, bias=True), conv("c", 8, 7, 1)))
    return [alds.row_of(options, problem, "params") for options in problem.options]


def budgets(rows):
    least, dense = alds.least_cost(rows), sum(row.dense_cost for row in rows)
    return [least, *range(least + 7, dense, (dense - least) // 6), dense]


def cost_of_fit(rows, fit):
    parts = zip(rows, fit.picks, fit.ranks, strict=True)
    return sum(min(row.dense_cost, rank * row.slicings[pick].rank_cost) for row, pick, rank in parts)


def test_errors_are_the_worst_discarded_singular_values(rows):
    kernel = problem_of((conv("a", 4, 6),)).kernels["a"]
    norm = torch.linalg.matrix_norm(kernel.flatten(1), 2)
    for slicing in rows[0].slicings:
        values = torch.linalg.svdvals(to_matrices(slicing.family, kernel))
        expected = [float(values[:, r].max() / norm) for r in range(values.shape[1])] + [0.0]
        assert slicing.errors == pytest.approx(expected, abs=1e-7)
        assert slicing.rank_cost == pair_candidate(conv("a", 4, 6), slicing.family, 1).params
    assert [slicing.family.name for slicing in rows[0].slicings] == ["S4(1)", "S4(2)", "S4(4)"]
    assert [row.dense_cost for row in rows] == [4 * 6 * 9, 6 * 5 * 9, 8 * 7]  # the bias is there anyway


def test_ranks_have_the_least_largest_error_for_their_slicing(rows):
    picks = (1, 0, 0)
    slicings = [row.slicings[pick] for row, pick in zip(rows, picks, strict=True)]
    for budget in budgets(rows):
        fit = alds.fit_ranks(rows, picks, budget)
        every = itertools.product(*(range(1, len(s.errors)) for s in slicings))
        fits = [alds.Fit(picks, ranks, alds._largest_error(rows, slicings, ranks)) for ranks in every]
        possible = [other.error for other in fits if cost_of_fit(rows, other) <= budget]
        if not possible:
            assert fit is None
        else:
            assert cost_of_fit(rows, fit) <= budget
            assert fit.error == pytest.approx(min(possible))


def test_the_answer_is_no_worse_than_any_of_the_starts(rows):
    for budget in budgets(rows):
        best = alds.solve(rows, budget)
        assert cost_of_fit(rows, best) <= budget
        for picks in alds.starts(rows):
            start = alds.fit_ranks(rows, picks, budget)
            assert start is None or best.error <= start.error


def test_no_round_makes_it_worse(rows):
    for budget in budgets(rows):
        for picks in alds.starts(rows):
            fit = alds.fit_ranks(rows, picks, budget)
            while fit is not None:
                after = alds.fit_ranks(rows, alds._reslice(rows, fit), budget)
                assert after is not None
                assert after.error <= fit.error
                if after.error == fit.error:
                    break
                fit = after


def test_the_first_starts_are_near_three_five_seven_and_nine_slices():
    problem = problem_of((conv("twelve", 12, 8), conv("seven", 7, 8)))
    rows = [alds.row_of(options, problem, "params") for options in problem.options]
    starts = alds.starts(rows)
    assert len(starts) == alds.STARTS
    slices = [[row.slicings[pick].family.slices for row, pick in zip(rows, s, strict=True)] for s in starts]
    assert slices[:4] == [[3, 1], [4, 7], [6, 7], [6, 7]]


@pytest.mark.parametrize("metric", ["macs", "params"])
def test_each_form_of_alds_uses_up_its_own_kind_of_budget(metric):
    own = alds.BY_PARAMS if metric == "params" else alds.BY_MACS
    problem = problem_of(metric=metric, share=0.7)
    total = problem.total(own.select(problem))
    assert 0.9 * problem.limit < total <= problem.limit
