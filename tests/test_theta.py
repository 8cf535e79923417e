"""Scores of candidates: where they start and what is picked."""

import itertools

import pytest
import torch
from rank_problems import problem_of

from edgecompress.errors import BudgetError
from edgecompress.search.ranks.exact import select
from edgecompress.search.theta import Space, argmax_cost, gumbel, pick, start_scores, step_generator, tilted

PROBLEM = problem_of(share=0.6, with_errors=True)
SPACE = Space(PROBLEM)
FEW = Space(problem_of(share=0.6, families=("S4(8)",), with_errors=True))


def test_expected_cost_of_a_certain_plan_is_its_cost():
    choices = select(PROBLEM)
    certain = [torch.zeros(size, dtype=torch.float64) for size in SPACE.sizes]
    for own, options in zip(certain, PROBLEM.options, strict=True):
        choice = choices.get(options.layer.name)
        own[0 if choice is None else 1 + options.candidates.index(choice)] = 1
    assert float(SPACE.expected_cost(certain)) == pytest.approx(PROBLEM.total(choices))
    assert SPACE.entropy(certain) == 0


def test_the_pick_is_the_most_probable_plan_within_the_limit():
    torch.manual_seed(0)
    scores = torch.randn(sum(FEW.sizes), dtype=torch.float64)
    parts, costs = FEW.split(scores), FEW.split(FEW.costs)
    best = max(
        sum(float(part[i]) for part, i in zip(parts, plan, strict=True))
        for plan in itertools.product(*(range(size) for size in FEW.sizes))
        if FEW.problem.fixed_cost + sum(float(c[i]) for c, i in zip(costs, plan, strict=True))
        <= FEW.problem.limit
    )
    found = pick(FEW, scores)
    assert FEW.problem.total(found) <= FEW.problem.limit
    places = [
        1 + o.candidates.index(found[o.layer.name]) if o.layer.name in found else 0
        for o in FEW.problem.options
    ]
    assert sum(float(part[i]) for part, i in zip(parts, places, strict=True)) == pytest.approx(best)


def test_best_scores_at_the_start_meet_the_limit_closely():
    for share in (0.4, 0.6, 0.8):
        space = Space(problem_of(share=share, with_errors=True))
        cost = argmax_cost(space, start_scores(space, None))
        assert 0.85 * space.problem.limit <= cost <= space.problem.limit


def test_a_roomy_limit_starts_with_the_dense_network():
    space = Space(problem_of(share=1.0, with_errors=True))
    assert pick(space, start_scores(space, None)) == {}


@pytest.mark.parametrize("with_errors", [True, False])
def test_a_given_plan_is_what_would_be_picked_at_the_start(with_errors):
    problem = problem_of(share=0.6, with_errors=with_errors)
    space = Space(problem)
    plan = {o.layer.name: o.candidates[0] for o in problem.options[:-1]}
    scores = start_scores(space, plan)
    assert argmax_cost(space, scores) == pytest.approx(problem.total(plan))
    if problem.total(plan) <= problem.limit:
        assert pick(space, scores) == plan


def test_no_plan_within_the_limit_is_an_error():
    space = Space(problem_of(share=0.001, with_errors=True))
    with pytest.raises(BudgetError, match="nearest reachable"):
        pick(space, start_scores(space, None))


def test_noise_is_gumbels_and_follows_from_seed_and_step():
    noise = gumbel((200_000,), step_generator(0, 0))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.std()) == pytest.approx(1.2825, abs=0.01)
    first, again, later, other = (
        gumbel((9,), step_generator(*at)) for at in ((1, 2), (1, 2), (1, 3), (2, 2))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("temperature", [0.14, 2.0])
def test_tilted_scores_cost_the_limit(temperature):
    torch.manual_seed(0)
    scores = torch.randn(sum(SPACE.sizes), dtype=torch.float64)
    shifted = tilted(SPACE, scores, temperature)
    assert float(SPACE.expected_cost(SPACE.probabilities(shifted, temperature))) == pytest.approx(
        PROBLEM.limit
    )
    assert SPACE.cost_of_scores(shifted, temperature) == pytest.approx(PROBLEM.limit)
    moved = (scores - shifted) / SPACE.costs  # by one price for all
    torch.testing.assert_close(moved, moved[:1].expand_as(moved))
