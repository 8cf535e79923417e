"""Moves of a local search: affordable in any unit of cost, and never off the layer's options."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import problem_of

from edgecompress.search.moves import SIDEWAYS, applied, ladders_of, moves
from edgecompress.search.ranks.exact import select

FAMILIES = ("S2", "S4(1)", "S5(1)")
METRICS = ("macs", "params", "ms")
PROBLEMS = {m: problem_of(metric=m, share=0.6, families=FAMILIES, with_errors=True) for m in METRICS}
IN_ANY_UNIT = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


def every_move(problem, choices):
    return list(moves(problem, ladders_of(problem), choices))


def error_of(problem, choices):
    total = 0.0
    for options in problem.options:
        if options.layer.name in choices:
            total += options.errors[options.candidates.index(choices[options.layer.name])]
    return total


@IN_ANY_UNIT
@given(data=st.data())
def test_a_move_keeps_the_limit_and_changes_what_it_says(problem, data):
    choices = data.draw(some_plan(problem))
    problem = dataclasses.replace(problem, limit=problem.total(choices) * data.draw(st.floats(1, 1.2)))
    for move in every_move(problem, choices):
        after = applied(choices, move)
        assert problem.total(after) <= problem.limit * (1 + 1e-12)
        assert problem.total(after) - problem.total(choices) == pytest.approx(sum(s.cost for s in move))
        change = error_of(problem, after) - error_of(problem, choices)
        assert change == pytest.approx(sum(s.error for s in move), abs=1e-9)
        assert {s.name for s in move} == {n for n in after.keys() | choices if after.get(n) != choices.get(n)}


@st.composite
def some_plan(draw, problem):
    """Any candidate of any layer, also such as others beat, or none."""
    picks = {o.layer.name: draw(st.sampled_from([None, *o.candidates])) for o in problem.options}
    return {name: candidate for name, candidate in picks.items() if candidate is not None}


@IN_ANY_UNIT
def test_ladders_rise_in_cost_and_fall_in_error_up_to_the_dense_layer(problem):
    for ladder in ladders_of(problem):
        costs, errors = [r.cost for r in ladder.rungs], [r.error for r in ladder.rungs]
        assert costs == sorted(set(costs))
        assert errors == sorted(set(errors), reverse=True)
        assert ladder.rungs[-1].candidate is None
        assert set(ladder.rungs) <= set(ladder.every.values())


@IN_ANY_UNIT
def test_there_are_trades_steps_into_free_budget_and_changes_of_family(problem):
    start = select(problem)
    roomy = dataclasses.replace(problem, limit=problem.limit * 1.1)
    found = every_move(roomy, start)
    assert any(len(move) == 2 and move[0].cost < 0 < move[1].cost for move in found)
    assert any(len(move) == 1 and move[0].cost > 0 and move[0].error < 0 for move in found)
    families = {name: candidate.family for name, candidate in start.items()}
    others = [m[0] for m in found if len(m) == 1 and m[0].candidate and m[0].name in families]
    others = [s for s in others if s.candidate.family != families[s.name]]
    assert others
    for step in others:
        (options,) = (o for o in problem.options if o.layer.name == step.name)
        now = options.errors[options.candidates.index(start[step.name])]
        assert now + step.error <= SIDEWAYS * now + 1e-12


def test_a_choice_that_others_beat_steps_back_onto_its_ladder():
    problem = PROBLEMS["ms"]
    ladders = {ladder.name: ladder for ladder in ladders_of(problem)}
    options = problem.options[1]
    on = {rung.candidate for rung in ladders[options.layer.name].rungs}
    beaten = next(c for c in options.candidates[5:] if c not in on)
    plan = {options.layer.name: beaten}
    roomy = dataclasses.replace(problem, limit=problem.total({}) * 2)
    steps = [m[0] for m in every_move(roomy, plan) if len(m) == 1 and m[0].name == options.layer.name]
    assert {s.candidate for s in steps} & on


def test_nothing_is_affordable_below_the_smallest_plan():
    problem = PROBLEMS["macs"]
    cheapest = {ladder.name: ladder.rungs[0].candidate for ladder in ladders_of(problem)}
    tight = dataclasses.replace(problem, limit=problem.total(cheapest))
    assert all(len(m) == 1 and m[0].cost <= 0 for m in every_move(tight, cheapest))
