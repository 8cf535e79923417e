"""What every rank selection keeps, whichever rule it follows."""

import dataclasses
import re

import pytest
from rank_problems import problem_of

from edgecompress.core.plugins import discover
from edgecompress.errors import BudgetError
from edgecompress.search import ranks
from edgecompress.search.contract import Selection

SELECTIONS = discover(ranks, Selection).values()
METRICS = ("macs", "params", "ms")
EVERY_RULE = pytest.mark.parametrize("selection", SELECTIONS, ids=lambda selection: selection.name)
EVERY_METRIC = pytest.mark.parametrize("metric", METRICS)
BOTH = ("lowrank", "tucker2")


@pytest.fixture(scope="module")
def problems():
    """One problem per metric, built once: its candidates and their errors take the time."""
    return {m: problem_of(metric=m, share=0.8, methods=BOTH, with_errors=True) for m in METRICS}


def with_limit(problem, limit):
    return dataclasses.replace(problem, limit=limit)


@EVERY_METRIC
@EVERY_RULE
def test_choices_are_within_the_limit_and_use_it(selection, metric, problems):
    problem = problems[metric]
    total = problem.total(selection.select(problem))
    assert total <= problem.limit * (1 + 1e-9)
    assert total < problem.total({})


@EVERY_METRIC
@EVERY_RULE
def test_every_choice_costs_less_than_its_dense_layer(selection, metric, problems):
    problem = problems[metric]
    layers = {o.layer.name: o.layer for o in problem.options}
    choices = selection.select(problem)
    assert choices
    for name, candidate in choices.items():
        assert candidate.layers == (name,)
        assert problem.cost(candidate) < problem.dense_cost(layers[name])


@EVERY_RULE
def test_only_families_on_offer_are_used(selection, problems):
    problem = problems["macs"]
    offered = {o.layer.name: {(c.method, c.family) for c in o.candidates} for o in problem.options}
    for name, candidate in selection.select(problem).items():
        assert (candidate.method, candidate.family) in offered[name]


@EVERY_METRIC
@EVERY_RULE
def test_layers_stay_dense_when_the_dense_model_is_within_the_limit(selection, metric, problems):
    problem = problems[metric]
    assert selection.select(with_limit(problem, problem.total({}))) == {}


@EVERY_METRIC
@EVERY_RULE
def test_an_impossible_limit_names_the_nearest_that_is_possible(selection, metric, problems):
    problem = problems[metric]
    with pytest.raises(BudgetError) as raised:
        selection.select(with_limit(problem, problem.fixed_cost))
    named = re.search(rf"nearest reachable is {metric}=(\S+)", str(raised.value))
    assert named is not None
    nearest = float(named[1]) * (1 + 1e-5)  # rounded for people
    assert problem.total(selection.select(with_limit(problem, nearest))) <= nearest
    with pytest.raises(BudgetError):
        selection.select(with_limit(problem, nearest * 0.99))


@EVERY_RULE
def test_the_same_problem_has_the_same_answer(selection, problems):
    problem = problems["macs"]
    assert selection.select(problem) == selection.select(problem)


@EVERY_RULE
def test_a_layer_without_candidates_stays_dense(selection, problems):
    problem = problems["macs"]
    first, *rest = problem.options
    kept = dataclasses.replace(first, candidates=(), errors=())
    choices = selection.select(dataclasses.replace(problem, options=(kept, *rest), limit=problem.limit * 1.1))
    assert choices
    assert kept.layer.name not in choices


@EVERY_RULE
def test_a_problem_without_any_candidates_cannot_be_met(selection, problems):
    problem = problems["macs"]
    bare = tuple(dataclasses.replace(o, candidates=(), errors=()) for o in problem.options)
    with pytest.raises(BudgetError, match=f"nearest reachable is macs={problem.total({}):g}"):
        selection.select(dataclasses.replace(problem, options=bare))
