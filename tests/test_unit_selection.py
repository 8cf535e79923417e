"""Which units stay: exact shares, nested sets, floors and multiples; and budgets that are met."""

import itertools
import math

import pytest
import torch
from group_nets import group
from hypothesis import given
from hypothesis import strategies as st

from edgecompress.errors import BudgetError, ConfigError
from edgecompress.search.unit_selection import error_curves, kept_by_cost, kept_by_ratio

SCOPES = ("per_type", "global", "per_layer")
NONE = {"channels": 1, "hidden": 1, "head_dim": 1}


def made_groups(*widths):
    kinds = itertools.cycle(("channels", "hidden", "head_dim"))
    return [
        group(f"g{i}", kind, width, [], [])
        for i, (kind, width) in enumerate(zip(kinds, widths, strict=False))
    ]


def drawn(groups, seed=0, levels=1000):
    generator = torch.Generator().manual_seed(seed)
    return {g.name: torch.randint(0, levels, (g.width,), generator=generator).float() for g in groups}


widths = st.lists(st.integers(1, 70), min_size=1, max_size=6)


@given(widths=widths, scope=st.sampled_from(SCOPES), seed=st.integers(0, 99), ratio=st.floats(0.01, 0.99))
def test_without_floors_exactly_the_share_goes_and_the_best_stay(widths, scope, seed, ratio):
    groups = made_groups(*widths)
    scores = drawn(groups, seed, levels=5)  # many ties
    kept = kept_by_ratio(groups, scores, ratio, scope=scope, floors={}, multiple=1)
    pools = {
        "per_type": [[g for g in groups if g.kind == kind] for kind in ("channels", "hidden", "head_dim")],
        "global": [groups],
        "per_layer": [[g] for g in groups],
    }[scope]
    for pool in pools:
        total = sum(g.width for g in pool)
        wanted = total - math.floor(ratio * total + 1e-9)
        empty = sum(1 for g in pool if kept[g.name] == [] or len(kept[g.name]) == 1)
        stays = sum(len(kept[g.name]) for g in pool)
        assert wanted <= stays <= wanted + empty  # a group never loses its last unit
        inside = [float(scores[g.name][i]) for g in pool for i in kept[g.name] if len(kept[g.name]) > 1]
        outside = [float(s) for g in pool for i, s in enumerate(scores[g.name]) if i not in kept[g.name]]
        assert not inside or not outside or min(inside) >= max(outside)


@given(
    widths=widths,
    scope=st.sampled_from(SCOPES),
    seed=st.integers(0, 99),
    ratios=st.tuples(*[st.floats(0.01, 0.99)] * 2),
)
def test_what_stays_at_a_higher_ratio_stays_at_a_lower_one(widths, scope, seed, ratios):
    groups = made_groups(*widths)
    scores = drawn(groups, seed, levels=9)
    more, less = (kept_by_ratio(groups, scores, ratio, scope=scope) for ratio in sorted(ratios))
    assert all(set(less[name]) <= set(more[name]) for name in more)


@given(
    widths=widths, seed=st.integers(0, 99), ratio=st.floats(0.01, 0.99), multiple=st.sampled_from([1, 4, 8])
)
def test_widths_are_multiples_above_the_floor_or_whole(widths, seed, ratio, multiple):
    groups = made_groups(*widths)
    floors = {"channels": 8, "hidden": 32, "head_dim": 8}
    kept = kept_by_ratio(groups, drawn(groups, seed), ratio, scope="global", multiple=multiple)
    for g in groups:
        units = kept[g.name]
        assert units == sorted(set(units)) and set(units) <= set(range(g.width))
        assert len(units) == g.width or (len(units) % multiple == 0 and len(units) >= floors[g.kind])


def test_equal_scores_keep_the_requested_count_lowest_index_first():
    (one,) = made_groups(40)
    kept = kept_by_ratio([one], {"g0": torch.ones(40)}, 0.4, multiple=8)
    assert kept["g0"] == list(range(24))


def test_rounding_up_readmits_the_best_that_would_have_gone():
    (one,) = made_groups(16)
    scores = {"g0": torch.arange(16).float()}
    assert kept_by_ratio([one], scores, 0.3, multiple=1)["g0"] == list(range(4, 16))  # 4.8 go: 4
    assert kept_by_ratio([one], scores, 0.9, multiple=1)["g0"] == list(range(8, 16))  # the floor
    assert kept_by_ratio([one], scores, 0.3, multiple=8)["g0"] == list(range(16))


def test_attention_is_not_drowned_by_the_many_units_of_mlps():
    groups = [group("attn", "head_dim", 32, [], []), group("mlp", "hidden", 1000, [], [])]
    scores = {"attn": torch.linspace(5, 6, 32), "mlp": torch.linspace(0, 1, 1000)}
    assert len(kept_by_ratio(groups, scores, 0.5, scope="global")["attn"]) == 32
    assert len(kept_by_ratio(groups, scores, 0.5)["attn"]) == 16
    assert len(kept_by_ratio(groups, scores, 0.5)["mlp"]) == 504


@pytest.mark.parametrize("ratio", [0, 1, 1.5, -0.1, math.nan])
def test_impossible_ratios_are_refused(ratio):
    groups = made_groups(16)
    with pytest.raises(ConfigError, match="ratio"):
        kept_by_ratio(groups, drawn(groups), ratio)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "g1: has no scores"),
        ({"g1": torch.ones(3)}, r"g1: has scores of shape \(3,\) for 4 units"),
        ({"g1": torch.tensor([1, 2, math.nan, 4])}, "g1: some scores are not numbers"),
    ],
)
def test_scores_that_do_not_fit_name_their_group(scores, message):
    groups = made_groups(2, 4)
    with pytest.raises(ConfigError, match=message):
        kept_by_ratio(groups, {"g0": torch.ones(2), **scores}, 0.5)
    with pytest.raises(ConfigError, match=message):
        kept_by_cost(groups, {"g0": torch.ones(2), **scores}, 1.0, lambda widths: 2.0)
    with pytest.raises(ConfigError, match="scope 'layer' is not known"):
        kept_by_ratio(groups, drawn(groups), 0.5, scope="layer")


def chain_cost(widths):
    """What a chain of convolutions costs: every width counts twice, with its two neighbours."""
    sizes = [3, *widths.values(), 10]
    return float(sum(a * b for a, b in itertools.pairwise(sizes)))


@given(widths=widths, seed=st.integers(0, 99), share=st.floats(0.3, 0.95))
def test_a_budget_is_met_or_the_nearest_is_named(widths, seed, share):
    groups = made_groups(*widths)
    dense = chain_cost({g.name: g.width for g in groups})
    limit = share * dense
    try:
        kept = kept_by_cost(groups, drawn(groups, seed), limit, chain_cost, floors=NONE)
    except BudgetError as error:
        least = chain_cost({g.name: min(8, g.width) for g in groups})
        assert least > limit and f"nearest reachable is {least:.6g}" in str(error)
    else:
        counts = {name: len(units) for name, units in kept.items()}
        assert chain_cost(counts) <= limit
        for name in counts:  # no block that could come back was left out
            wider = min(counts[name] // 8 * 8 + 8, dict(zip(counts, widths, strict=True))[name])
            assert wider == counts[name] or chain_cost({**counts, name: wider}) > limit


def test_all_stays_where_the_budget_allows_it():
    groups = made_groups(16, 40)
    kept = kept_by_cost(groups, drawn(groups), 1e9, chain_cost)
    assert kept == {"g0": list(range(16)), "g1": list(range(40))}


def test_blocks_go_where_they_harm_least_for_what_they_save():
    groups = made_groups(64, 64)
    scores = {"g0": torch.full((64,), 1.0), "g1": torch.full((64,), 3.0)}

    def cost(widths):
        return widths["g0"] + 5.0 * widths["g1"]  # a unit of g1 harms 3 times as much and saves 5 times

    kept = kept_by_cost(groups, scores, 300.0, cost, floors=NONE)
    assert len(kept["g0"]) == 64 and len(kept["g1"]) == 40


@given(seed=st.integers(0, 30))
def test_separable_convex_problems_are_solved_as_well_as_by_trying_all(seed):
    groups = made_groups(32, 40, 24)
    scores = {name: one + 1 for name, one in drawn(groups, seed).items()}
    curves = error_curves(scores)
    limit = 50.0

    def cost(widths):
        return float(sum(widths.values()))

    kept = kept_by_cost(groups, scores, limit, cost, floors=NONE)
    found = sum(float(curves[name][len(units)]) for name, units in kept.items())
    all_widths = itertools.product(*(range(8, g.width + 1, 8) for g in groups))
    allowed = [w for w in all_widths if sum(w) <= limit]
    best = min(sum(float(curves[g.name][n]) for g, n in zip(groups, w, strict=True)) for w in allowed)
    assert found == pytest.approx(best)


def test_error_curves_take_the_place_of_scores():
    groups = made_groups(16, 16)
    scores = {"g0": torch.ones(16), "g1": torch.ones(16) * 9}
    flat, steep = torch.zeros(17), torch.linspace(100, 0, 17)
    kept = kept_by_cost(
        groups, scores, 24, lambda w: sum(w.values()), errors={"g0": steep, "g1": flat}, floors=NONE
    )
    assert len(kept["g0"]) == 16 and len(kept["g1"]) == 8
    with pytest.raises(ConfigError, match="g1: needs 17 errors"):
        kept_by_cost(groups, scores, 24, lambda w: 0.0, errors={"g0": steep, "g1": flat[1:]})


def test_a_plateau_of_the_cost_is_passed():
    (one,) = made_groups(64)

    def staircase(widths):
        return math.ceil(widths["g0"] / 32)  # one block of 8 saves nothing

    kept = kept_by_cost([one], drawn([one]), 1, staircase)
    assert len(kept["g0"]) == 32


def test_the_cost_is_asked_for_rarely():
    groups = made_groups(*[256] * 30)
    scores, asked = drawn(groups), []

    def cost(widths):
        asked.append(1)
        return chain_cost(widths)

    dense = chain_cost({g.name: 256 for g in groups})
    kept = kept_by_cost(groups, scores, dense / 2, cost)
    removals = sum((256 - len(units)) // 8 for units in kept.values())
    assert len(asked) < 6 * removals < removals * len(groups)
