"""Widths and blocks are chosen by what they really do, not by what was predicted of them."""

import pytest
from test_joint import problem

from edgecompress.errors import BudgetError
from edgecompress.pipeline.joint_trial import choose_by_trial, exchanged, on_one_scale
from edgecompress.search.joint import choose_jointly

GROUPS = {"g": [(8, 0.0, 0), (6, 0.2, 20), (4, 0.5, 40)]}
LAYERS = {"l": [(0.4, 20), (1.0, 40)]}


def truth(one, *, widths=1.0, blocks=1.0):
    """A judge for whom each kind does so many times the harm that was predicted."""
    return lambda found: widths * _harm(one, found, "widths") + blocks * _harm(one, found, "blocks")


def _harm(one, found, kind):
    if kind == "blocks":
        return sum(map(one.error_of, found.choices.values()))
    return one.error(found) - _harm(one, found, "blocks")


@pytest.mark.parametrize(("widths", "is_narrow"), [(1.0, True), (10.0, False)])
def test_the_kind_that_does_less_harm_is_taken(widths, is_narrow):
    one = problem(GROUPS, LAYERS, 60, touching={"g": ("l",)})
    found = choose_by_trial(one, truth(one, widths=widths))
    assert (found.widths["g"] < 8) == is_narrow
    assert one.cost(found) <= 60


@pytest.mark.parametrize("widths", [0.01, 0.3, 1.0, 3.0, 100.0])
def test_both_together_are_never_worse_than_either_alone(widths):
    one = problem(GROUPS, LAYERS, 60)
    judge = truth(one, widths=widths)
    alone = [problem(GROUPS, {}, 60), problem({"g": GROUPS["g"][:1]}, LAYERS, 60)]
    assert judge(choose_by_trial(one, judge)) <= min(judge(choose_jointly(each)) for each in alone)


def test_errors_are_exchanged_at_the_rate_that_was_seen():
    one = problem(GROUPS, LAYERS, 60)
    scaled = on_one_scale(one, truth(one, widths=6.0, blocks=2.0))
    assert scaled.ladders[0].errors == pytest.approx([0.0, 0.6, 1.5])
    assert scaled.options == one.options
    assert exchanged(one, 1.0) == one


def test_one_kind_alone_is_not_tried():
    one = problem(GROUPS, {}, 60)
    assert choose_by_trial(one, lambda found: pytest.fail("nothing to compare")) == choose_jointly(one)
    with pytest.raises(BudgetError, match="nearest"):
        choose_by_trial(problem(GROUPS, LAYERS, 1), lambda found: 1.0)
