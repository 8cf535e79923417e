"""Widths and blocks in one budget: within it, near the best there is, and never both in one layer."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompress.core.types import Block, Candidate, Layer, Op
from edgecompress.errors import BudgetError
from edgecompress.search.contract import Options
from edgecompress.search.joint import Joint, JointProblem, Ladder, best_at, choose_jointly, front

OP = Op(kind="linear", inputs=8, outputs=8)


def candidate(layer, saved):
    """A block whose rank says what it saves."""
    return Candidate(
        method="lowrank",
        family="S4(1)",
        ranks=(saved,),
        layers=(layer,),
        blocks=(Block(branches=((OP,),)),),
        params=1,
        macs=1,
    )


def problem(groups, layers, limit, *, touching=None, dense=100.0, coupled=0.0):
    """Groups as {name: [(width, error, saved)]}, layers as {name: [(error, saved)]}.

    `coupled` is what two narrowed groups save less together.
    """
    saved = {name: {width: s for width, _, s in steps} for name, steps in groups.items()}

    def change_of(name, widths):
        whole = {g: steps[0][0] for g, steps in groups.items()}
        others = [g for g in groups if g != name and widths.get(g, whole[g]) < whole[g]]
        is_narrow = widths.get(name, whole[name]) < whole[name]
        return -saved[name][widths.get(name, whole[name])] + (coupled * len(others) if is_narrow else 0.0)

    def change(widths):
        whole = {g: steps[0][0] for g, steps in groups.items()}
        narrow = [g for g in groups if widths[g] < whole[g]]
        pairs = len(narrow) * (len(narrow) - 1) / 2
        return -sum(saved[g][w] for g, w in widths.items()) + coupled * pairs

    ladders = [
        Ladder(
            name,
            tuple(w for w, _, _ in steps),
            tuple(e for _, e, _ in steps),
            (touching or {}).get(name, ()),
        )
        for name, steps in groups.items()
    ]
    options = [
        Options(
            Layer(name=name, op=OP, in_size=(1, 1)),
            tuple(candidate(name, s) for _, s in steps),
            tuple(e for e, _ in steps),
        )
        for name, steps in layers.items()
    ]
    return JointProblem(
        tuple(ladders), tuple(options), "macs", limit, dense, change, change_of, lambda c: float(c.ranks[0])
    )


def everything(one):
    """Yields all choices that keep the rule of one change per layer."""
    widths = [[(ladder.name, w) for w in ladder.widths] for ladder in one.ladders]
    blocks = [[None, *options.candidates] for options in one.options]
    for picked in itertools.product(*widths):
        for chosen in itertools.product(*blocks):
            found = Joint(dict(picked), {c.layers[0]: c for c in chosen if c is not None})
            if not both_changed(one, found):
                yield found


def both_changed(one, found):
    narrowed = {ladder.name for ladder in one.ladders if found.widths[ladder.name] < ladder.widths[0]}
    return [layer for layer in found.choices if narrowed & set(one.groups_of.get(layer, ()))]


STEPS = st.lists(st.tuples(st.floats(0.01, 10), st.integers(1, 30)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(STEPS, min_size=1, max_size=3),
    st.lists(STEPS, min_size=1, max_size=3),
    st.floats(0.3, 0.95),
    st.floats(0, 3),
    st.booleans(),
)
def test_the_limit_is_met_near_the_least_error(groups, layers, share, coupled, touches):
    made = {
        f"g{i}": [(8, 0.0, 0), *((7 - k, e, s) for k, (e, s) in enumerate(sorted(steps)))]
        for i, steps in enumerate(groups)
    }
    blocks = {f"l{i}": steps for i, steps in enumerate(layers)}
    touching = {"g0": ("l0",)} if touches else {}
    one = problem(made, blocks, 1.0, touching=touching, coupled=coupled)
    all_of_it = list(everything(one))
    least = min(map(one.cost, all_of_it))
    limit = least + share * (100 - least)
    one = problem(made, blocks, limit, touching=touching, coupled=coupled)
    found = choose_jointly(one)
    assert one.cost(found) <= limit + 1e-9 and not both_changed(one, found)
    best = min((each for each in all_of_it if one.cost(each) <= limit), key=one.error)
    largest = max(e for ladder in (*one.ladders, *one.options) for e in ladder.errors)
    assert one.error(best) - 1e-9 <= one.error(found) <= one.error(best) + 2 * largest


def test_a_layer_is_narrowed_or_low_rank_whichever_is_worth_more():
    def chosen(narrow_error):
        groups = {"g": [(8, 0.0, 0), (4, narrow_error, 40)]}
        return choose_jointly(problem(groups, {"l": [(1.0, 40)]}, 60, touching={"g": ("l",)}))

    assert chosen(0.5).widths == {"g": 4} and not chosen(0.5).choices
    assert chosen(2.0).widths == {"g": 8} and list(chosen(2.0).choices) == ["l"]


def test_both_are_used_where_they_do_not_meet():
    groups = {"g": [(8, 0.0, 0), (4, 0.5, 30)]}
    found = choose_jointly(problem(groups, {"l": [(1.0, 40)]}, 35))
    assert found.widths == {"g": 4} and list(found.choices) == ["l"]


def test_what_the_price_leaves_is_spent():
    """Between two prices everything goes at once; a block with less error fits all the same."""
    groups = {"g": [(8, 0.0, 0), (7, 1.0, 10), (6, 2.0, 20), (5, 3.0, 30)]}
    found = choose_jointly(problem(groups, {}, 85))
    assert found.widths == {"g": 6}


def test_a_limit_below_the_floor_is_refused_with_the_nearest():
    groups = {"g": [(8, 0.0, 0), (4, 1.0, 30)]}
    with pytest.raises(BudgetError, match=r"limit 10 macs: cannot be met; the nearest reachable is 70"):
        choose_jointly(problem(groups, {}, 10))


def test_the_front_falls_in_error_as_cost_rises():
    groups = {"a": [(8, 0.0, 0), (7, 1.0, 10), (6, 3.0, 20)], "b": [(8, 0.0, 0), (4, 2.0, 30)]}
    one = problem(groups, {"l": [(0.5, 5), (4.0, 20)]}, 50)
    points = list(front(one, 30))
    costs, errors = [one.cost(p) for p in points], [one.error(p) for p in points]
    assert costs == sorted(costs) and errors == sorted(errors, reverse=True)
    assert len(points) >= 4 and costs[-1] == 100
    assert best_at(one, 0.0).widths == {"a": 8, "b": 8}
