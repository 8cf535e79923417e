"""Each rank rule against its own definition, by brute force."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_problems import LAYERS, conv, kernel_of, linear, problem_of

from edgecompress.core.costs import op_macs, op_params
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.families import Family, family_named, max_rank, to_matrices
from edgecompress.search.contract import Options, dense_shape_cost, shape_cost
from edgecompress.search.knob import Ladder, meet_limit
from edgecompress.search.ranks import alds, energy, f_group, global_values, lr_s2, trp, uniform
from edgecompress.search.spectra import singular_values, spectra_of

THRESHOLD_RULES = (
    uniform.SELECTION,
    energy.SELECTION,
    trp.SELECTION,
    global_values.ABSOLUTE,
    global_values.RELATIVE,
    lr_s2.PER_RANK,
    lr_s2.PUBLISHED,
)
LOWRANK_RULES = (*THRESHOLD_RULES, f_group.SELECTION, alds.BY_PARAMS, alds.BY_MACS)


def ids(selection):
    return selection.name


def svdvals(family, kernel):
    """Returns the singular values of one-slice families by a real SVD."""
    return torch.linalg.svdvals(to_matrices(family, kernel))[0]


def chosen_ranks(problem, choices):
    """Returns layer, family, rank and singular values of every chosen candidate."""
    for options in problem.options:
        candidate = choices.get(options.layer.name)
        if candidate is not None:
            family = family_named(candidate.family)
            values = svdvals(family, problem.kernels[options.layer.name])
            yield options.layer, family, candidate.ranks[0], values


def obeys_one_threshold(parts, *, rank_min=1):
    """Tells whether some threshold separates what all layers keep from what all layers drop.

    `parts` are (worth of each rank, rank); what a floor of ranks keeps proves nothing.
    """
    kept = [float(worth[rank - 1]) for worth, rank in parts if rank > rank_min]
    dropped = [float(worth[rank]) for worth, rank in parts if rank < len(worth)]
    return min(kept, default=np.inf) > max(dropped, default=-np.inf) * (1 - 1e-9)


# spectra and the knob


@given(
    inputs=st.integers(1, 10),
    outputs=st.integers(1, 10),
    kernel=st.sampled_from([1, 3, (1, 2)]),
    kind=st.sampled_from(["S2", "S2T", "S4", "S5"]),
    sliced=st.booleans(),
)
def test_singular_values_are_those_of_a_real_svd(inputs, outputs, kernel, kind, sliced):
    layer = conv("layer", inputs, outputs, kernel)
    slices = {"S4": inputs, "S5": outputs}.get(kind, 1) if sliced else 1
    family, weight = Family(kind, slices), kernel_of(layer)
    values = singular_values(family, weight)
    assert values.shape == (slices, max_rank(family, layer.op))
    torch.testing.assert_close(
        values, torch.linalg.svdvals(to_matrices(family, weight)), rtol=1e-6, atol=1e-7
    )


def test_spectra_sum_the_energies_of_slices():
    problem = problem_of(LAYERS[:1], families=("S4(4)",))
    (spectrum,) = spectra_of(problem, "S4(1)")
    values = torch.linalg.svdvals(to_matrices(Family("S4", 4), problem.kernels["wide"]))
    torch.testing.assert_close(spectrum.energies, values.square().sum(0))


@given(costs=st.lists(st.integers(0, 50), min_size=1, max_size=30), limit=st.integers(0, 60))
def test_the_knob_stops_at_the_last_value_within_the_limit(costs, limit):
    costs, layer = sorted(costs), LAYERS[0]
    problem = dataclasses.replace(ONE_LAYER, limit=limit, fixed_cost=0, dense_cost=lambda layer: 1000.0)

    def choose(knob):
        candidate = pair_candidate(layer, Family("S4"), 1)
        return {layer.name: candidate.model_copy(update={"ranks": (knob,), "macs": costs[knob]})}

    knobs = range(len(costs))
    if limit < costs[0]:
        with pytest.raises(BudgetError, match=rf"macs={limit}: .* macs={costs[0]}$"):
            meet_limit(problem, choose, knobs)
    else:
        last = max(knob for knob in knobs if costs[knob] <= limit)
        assert meet_limit(problem, choose, knobs) == choose(last)


ONE_LAYER = problem_of(LAYERS[:1])


def test_a_dense_model_within_the_limit_stays_even_if_the_knob_would_not_leave_it():
    def choose(knob):
        return {"wide": pair_candidate(LAYERS[0], Family("S4"), 1)}

    assert meet_limit(ONE_LAYER, choose, [0.0, 1.0]) == {}


def test_a_rank_worth_no_more_than_the_threshold_is_dropped():
    ladder = Ladder(LAYERS[0], Family("S4"), torch.tensor([4.0, 2.0, 2.0, 1.0]))
    assert [ladder.rank(threshold) for threshold in (5, 4, 3, 2, 1, 0)] == [1, 1, 1, 1, 3, 4]
    assert [ladder.rank(5, rank_min=least) for least in (1, 3, 9)] == [1, 3, 4]


@pytest.mark.parametrize("selection", THRESHOLD_RULES, ids=ids)
@pytest.mark.parametrize("metric", ["macs", "params"])
def test_a_larger_limit_never_gives_a_smaller_model(selection, metric):
    problem = problem_of(metric=metric)
    limits = [problem.total({}) * share for share in np.linspace(0.6, 1.0, 15)]
    totals = [problem.total(selection.select(dataclasses.replace(problem, limit=limit))) for limit in limits]
    assert totals == sorted(totals)
    assert all(total <= limit for total, limit in zip(totals, limits, strict=True))


@pytest.mark.parametrize("selection", LOWRANK_RULES, ids=ids)
def test_without_lowrank_candidates_the_user_is_told_what_to_pass(selection):
    with pytest.raises(ConfigError, match="--methods lowrank"):
        selection.select(problem_of(LAYERS[:2], share=0.8, methods=("tucker2",)))


@pytest.mark.parametrize("selection", (*THRESHOLD_RULES, alds.BY_PARAMS, alds.BY_MACS), ids=ids)
@pytest.mark.parametrize("family", ["S2", "S2T", "S5(1)", "S4(4)"])
def test_a_rule_makes_do_with_the_family_it_is_offered(selection, family):
    choices = selection.select(problem_of(LAYERS[:2], share=0.9, families=(family,)))
    assert {candidate.family for candidate in choices.values()} == {family}


@pytest.mark.parametrize("selection", (uniform.SELECTION, energy.SELECTION, *LOWRANK_RULES[3:5]), ids=ids)
def test_channel_rules_read_every_layer_as_one_matrix(selection):
    assert {c.family for c in selection.select(problem_of(share=0.6)).values()} == {"S4(1)"}


@pytest.mark.parametrize("selection", LOWRANK_RULES, ids=ids)
def test_a_kernel_of_zeros_is_no_trouble(selection):
    problem = problem_of(share=0.8)
    kernels = {**problem.kernels, "deep": torch.zeros_like(problem.kernels["deep"])}
    problem = dataclasses.replace(problem, kernels=kernels)
    assert problem.total(selection.select(problem)) <= problem.limit


# uniform, energy, trp


@pytest.mark.parametrize("metric", ["macs", "params"])
@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_uniform_keeps_one_share_of_every_layer(metric, share):
    problem = problem_of(metric=metric, share=share)
    cost = shape_cost(metric)
    parts = []
    for layer, family, rank, values in chosen_ranks(problem, uniform.SELECTION.select(problem)):
        dense = dense_shape_cost(metric)(layer)
        shares = [cost(pair_candidate(layer, family, r + 1)) / dense for r in range(len(values))]
        parts.append((-np.array(shares) + 2, rank))
    assert parts
    assert obeys_one_threshold(parts)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_energy_is_the_least_rank_that_reaches_a_common_share(share):
    problem = problem_of(share=share)
    parts = list(chosen_ranks(problem, energy.SELECTION.select(problem)))
    kept = [float(values[:rank].square().sum() / values.square().sum()) for *_, rank, values in parts]
    common = min(kept)
    for *_, rank, values in parts:
        cumulative = values.square().cumsum(0) / values.square().sum()
        reached = next(r for r in range(1, len(values) + 1) if cumulative[r - 1] >= common * (1 - 1e-9))
        assert reached == rank or rank == 1


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_trp_discards_less_than_a_common_share_and_would_not_with_one_rank_less(share):
    problem = problem_of(share=share)
    parts = list(chosen_ranks(problem, trp.SELECTION.select(problem)))
    lost = [(values.square().flip(0).cumsum(0).flip(0) / values.square().sum(), r) for *_, r, values in parts]
    just_above_all = max(float(tails[r]) for tails, r in lost) * (1 + 1e-9)
    assert all(tails[r - 1] >= just_above_all for tails, r in lost if r > 1)


# global values


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("relative", [False, True])
def test_global_values_keeps_the_largest_of_the_pool(share, relative):
    problem = problem_of(share=share)
    rule = global_values.RELATIVE if relative else global_values.ABSOLUTE
    found = list(chosen_ranks(problem, rule.select(problem)))
    parts = [(values / values[0] if relative else values, rank) for *_, rank, values in found]
    assert parts
    assert obeys_one_threshold(parts, rank_min=global_values.RANK_MIN)


def test_no_layer_gets_less_than_the_least_rank():
    problem = problem_of()
    smallest = smallest_choices(problem, global_values.ABSOLUTE)
    assert {c.ranks for c in smallest.values()} == {(global_values.RANK_MIN,)}


def test_the_least_rank_gives_way_where_a_layer_has_fewer():
    problem = problem_of((conv("few", 1, 64, (1, 3)), conv("wide", 24, 24)))
    ranks = {name: c.ranks for name, c in smallest_choices(problem, global_values.ABSOLUTE).items()}
    assert ranks == {"wide": (5,)}  # "few" has rank 3, which does not save


def smallest_choices(problem, selection):
    with pytest.raises(BudgetError) as raised:
        selection.select(dataclasses.replace(problem, limit=0.0))
    nearest = float(str(raised.value).rpartition("=")[2])
    return selection.select(dataclasses.replace(problem, limit=nearest))


def test_only_absolute_values_depend_on_the_scale_of_a_kernel():
    problem = problem_of(share=0.7)
    kernels = {**problem.kernels, "deep": problem.kernels["deep"] * 4}
    scaled = dataclasses.replace(problem, kernels=kernels)
    assert global_values.RELATIVE.select(scaled) == global_values.RELATIVE.select(problem)
    assert global_values.ABSOLUTE.select(scaled) != global_values.ABSOLUTE.select(problem)


# LR-S2


@given(exponent=st.floats(-6, 2), metric=st.sampled_from(["macs", "params"]))
def test_the_threshold_of_lr_s2_is_the_minimum_of_its_objective(exponent, metric):
    problem, h = LR_S2_PROBLEMS[metric], 10**exponent
    for ladder in lr_s2.ladders(problem, published=False):
        values = svdvals(ladder.family, problem.kernels[ladder.layer.name])

        def objective(rank, ladder=ladder, values=values):
            cost = problem.cost(pair_candidate(ladder.layer, ladder.family, rank))
            return h * cost + float(values[rank:].square().sum())

        least = min(objective(rank) for rank in range(1, len(values) + 1))
        assert objective(ladder.rank(h)) == pytest.approx(least, rel=1e-9)


LR_S2_PROBLEMS = {metric: problem_of(metric=metric) for metric in ("macs", "params")}


def test_lr_s2_reads_convolutions_by_rows_and_columns():
    choices = smallest_choices(problem_of(), lr_s2.PER_RANK)
    assert {name: c.family for name, c in choices.items()} == {
        "wide": "S2",
        "deep": "S2",
        "point": "S4(1)",
        "head": "S4(1)",
    }


@pytest.mark.parametrize("published", [False, True])
def test_the_two_forms_of_lr_s2_differ_in_the_cost_they_weigh(published):
    problem = problem_of(share=0.6)
    rule = lr_s2.PUBLISHED if published else lr_s2.PER_RANK
    parts = []
    for layer, family, rank, values in chosen_ranks(problem, rule.select(problem)):
        one, two = (pair_candidate(layer, family, r).macs for r in (1, 2))
        cost = op_macs(layer.op, layer.in_size) if published else two - one
        parts.append((values.square() / cost, rank))
    assert obeys_one_threshold(parts)


# F-Group

RESNET18_SHAPES = [
    # inputs, outputs, stride, input size, published rank; the 16 3x3 convolutions of ResNet-18
    *[(64, 64, 1, 56, 8)] * 4,
    (64, 128, 2, 56, 32),
    *[(128, 128, 1, 28, 32)] * 3,
    (128, 256, 2, 28, 128),
    *[(256, 256, 1, 14, 128)] * 3,
    (256, 512, 2, 14, None),
    *[(512, 512, 1, 7, None)] * 3,
]


def resnet18_problem(limit):
    layers = [
        conv(f"conv{i}", inputs, outputs, stride=stride, size=size)
        for i, (inputs, outputs, stride, size, _) in enumerate(RESNET18_SHAPES)
    ]
    options = tuple(
        Options(layer, tuple(pair_candidate(layer, Family("S4", g), 1) for g in _divisors(layer.op.inputs)))
        for layer in layers
    )
    return dataclasses.replace(problem_of(()), options=options, limit=limit)


def _divisors(number):
    return [g for g in range(1, number + 1) if number % g == 0]


def test_f_group_gives_the_published_configuration_of_resnet18():
    dense = resnet18_problem(0.0)
    limit = dense.total({}) - 769_097_728
    problem = dataclasses.replace(dense, limit=limit)
    choices = f_group.SELECTION.select(problem)
    assert problem.total(choices) == limit
    saved = sum(op_params(o.layer.op) - choices[o.layer.name].params for o in problem.options[:12])
    assert saved == 1_245_184
    for options, (inputs, *_, rank) in zip(problem.options, RESNET18_SHAPES, strict=True):
        if rank is None:
            assert options.layer.name not in choices
        else:
            assert choices[options.layer.name].ranks == (rank,)
            assert choices[options.layer.name].family == f"S4({inputs // rank})"


def test_f_group_slices_by_rank_and_cuts_narrow_layers_hardest():
    problem = problem_of((conv("narrow", 12, 12), conv("middle", 12, 24), conv("broad", 24, 48)), share=0.7)
    choices = f_group.SELECTION.select(problem)
    for options in problem.options:
        if (candidate := choices.get(options.layer.name)) is not None:
            assert candidate.ranks[0] * family_named(candidate.family).slices == options.layer.op.inputs
    kept = [
        problem.cost(choices[o.layer.name]) / problem.dense_cost(o.layer) if o.layer.name in choices else 1.0
        for o in problem.options
    ]
    assert kept == sorted(kept)


def test_f_group_cannot_shrink_pointwise_layers():
    with pytest.raises(BudgetError):
        f_group.SELECTION.select(problem_of((conv("point", 16, 16, 1), linear("head", 16, 16)), share=0.9))
