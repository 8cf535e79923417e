"""A second branch on the residual: the paper's way and by turns."""

import pytest
import torch
from rank_problems import LAYERS, conv, kernel_of, problem_of

from edgecompress.core.costs import block_macs
from edgecompress.core.types import Block
from edgecompress.methods import lowrank
from edgecompress.methods.branches import branch_candidate
from edgecompress.methods.lowrank import pair_candidate
from edgecompress.nets.chains import equivalent_kernel
from edgecompress.nets.families import Family, family_named, pair_ops
from edgecompress.nets.metric import PLAIN, kernel_error
from edgecompress.search.ranks.exact import problem_front, select
from edgecompress.search.second_branch import add_second_branches, pair_method, relaxed_rank

PROBLEM = problem_of(share=0.5, with_errors=True)
CHOICES = select(PROBLEM)
METRICS = {layer.name: PLAIN for layer in LAYERS}


def added(problem, before=PROBLEM):
    """Returns the new candidates by layer, with their errors."""
    found = {}
    for old, new in zip(before.options, problem.options, strict=True):
        assert new.candidates[: len(old.candidates)] == old.candidates
        fresh = zip(new.candidates, new.errors, strict=True)
        found[old.layer] = list(fresh)[len(old.candidates) :]
    return found


def filled(mode, layer, kernel, candidate):
    kernels = pair_method(mode).factorise(kernel, layer, PLAIN)(candidate)
    return equivalent_kernel(candidate.blocks[0], kernels)


def test_a_fifth_of_the_dense_layer_is_taken_from_the_first_branch():
    layer, family = conv("layer", 12, 24), Family("S4")
    before, after = 9, relaxed_rank(layer, family, 9)
    per_rank = block_macs(Block(branches=(pair_ops(family, layer.op, 1),)), layer.in_size)
    taken = (before - after) * per_rank / block_macs(Block(branches=((layer.op,),)), layer.in_size)
    assert 0.2 - per_rank / block_macs(Block(branches=((layer.op,),)), layer.in_size) < taken <= 0.2
    assert relaxed_rank(layer, family, 1) == 1


@pytest.mark.parametrize("mode", ["greedy", "alternating"])
def test_pairs_join_the_candidates_there_were(mode):
    problem = add_second_branches(PROBLEM, CHOICES, METRICS, mode=mode)
    found = added(problem)
    assert any(found.values())
    for layer, pairs in found.items():
        assert len(pairs) <= 8
        for candidate, _ in pairs:
            first, second = candidate.family.split("+")
            choice = CHOICES[layer.name]
            assert first == choice.family != second
            assert candidate.ranks[0] == relaxed_rank(layer, family_named(first), choice.ranks[0])
            assert candidate.method == "branches"
            assert problem.cost(candidate) < problem.dense_cost(layer)


@pytest.mark.parametrize("mode", ["greedy", "alternating"])
def test_errors_are_those_of_the_filled_pairs(mode):
    problem = add_second_branches(PROBLEM, CHOICES, METRICS, mode=mode, max_pairs=2)
    for layer, pairs in added(problem).items():
        kernel = PROBLEM.kernels[layer.name]
        whole = kernel_error(kernel, torch.zeros_like(kernel), PLAIN)
        for candidate, error in pairs:
            expected = kernel_error(kernel, filled(mode, layer, kernel, candidate), PLAIN) / whole
            assert error == pytest.approx(expected)


def test_a_kept_pair_is_beaten_by_nothing():
    problem = add_second_branches(PROBLEM, CHOICES, METRICS)
    for options in problem.options:
        costs = [problem.cost(c) for c in options.candidates]
        for c, cost, error in zip(options.candidates, costs, options.errors, strict=True):
            if c.method == "branches":
                assert not any(o <= cost and e < error for o, e in zip(costs, options.errors, strict=True))


def test_greedy_pairs_are_a_truncation_and_the_best_of_its_residual():
    layer = conv("layer", 12, 16)
    kernel = kernel_of(layer)
    pair = (Family("S4"), Family("S2"))
    found = filled("greedy", layer, kernel, branch_candidate(layer, pair, (4, 3)))
    first = alone(layer, kernel, pair[0], 4)
    torch.testing.assert_close(found, first + alone(layer, kernel - first, pair[1], 3))


def alone(layer, kernel, family, rank):
    candidate = pair_candidate(layer, family, rank)
    return equivalent_kernel(candidate.blocks[0], lowrank.METHOD.factorise(kernel, layer, PLAIN)(candidate))


def test_by_turns_is_no_worse_than_greedy():
    layer = conv("layer", 12, 16)
    kernel = kernel_of(layer)
    for pair in [(Family("S4"), Family("S2")), (Family("S5"), Family("S4"))]:
        candidate = branch_candidate(layer, pair, (4, 5))
        errors = [
            kernel_error(kernel, filled(mode, layer, kernel, candidate), PLAIN)
            for mode in ("alternating", "greedy")
        ]
        assert errors[0] < errors[1]


def test_layers_that_stay_dense_get_no_pairs():
    problem = add_second_branches(PROBLEM, {}, METRICS)
    assert problem.options == PROBLEM.options


def test_more_candidates_never_make_the_front_worse():
    problem = add_second_branches(PROBLEM, CHOICES, METRICS)
    before, after = problem_front(PROBLEM), problem_front(problem)
    for share in (0.4, 0.5, 0.7):
        limit = share * PROBLEM.total({}) - PROBLEM.fixed_cost
        assert after.errors[after.within(limit)] <= before.errors[before.within(limit)] + 1e-12
