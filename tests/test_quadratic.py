"""The least-squares problem of a layer: moments say what data would, and solutions are the best there are."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_problems import conv, kernel_of, linear
from small_nets import images
from torch import nn

from edgecompress.core.types import Block
from edgecompress.factors import quadratic
from edgecompress.factors.patches import sample_patches
from edgecompress.factors.quadratic import Target, refine, solve_last
from edgecompress.methods import tucker2
from edgecompress.methods.lowrank import factorise, pair_candidate
from edgecompress.nets.chains import equivalent_kernel, filled_block
from edgecompress.nets.families import Family, families_of, max_rank
from edgecompress.nets.metric import PLAIN
from edgecompress.nets.modules import block_layers, op_of

ALL = 10**9
LAYER = conv("layer", 4, 6, (3, 2), stride=2, size=9)
FAMILIES = families_of(LAYER.op)
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def seen_images(layer, seed=0):
    return images(20, seed=seed, shape=(layer.op.inputs, *layer.in_size), dtype=torch.float64)


@functools.cache
def data_of(layer):
    """Returns patches seen in a compressed network and the outputs the dense one has instead."""
    wanted = seen_images(layer)
    seen = wanted + 0.3 * seen_images(layer, seed=5)
    outputs = sample_patches(wanted, layer.op, ALL, 0) @ kernel_of(layer).flatten(1).T
    return seen, sample_patches(seen, layer.op, ALL, 0), outputs


@functools.cache
def target_of(layer):
    _, patches, outputs = data_of(layer)
    torch.manual_seed(0)
    pulls = torch.randn(200, layer.op.outputs, dtype=torch.float64)
    return Target(
        patches.T @ patches / len(patches), outputs.T @ patches / len(patches), pulls.T @ pulls / 200
    )


def start_of(layer, family, rank):
    candidate = pair_candidate(layer, family, rank)
    return candidate.blocks[0], factorise(kernel_of(layer), layer, PLAIN)(candidate)


def error_of(block, kernels, target):
    return float(target.error(equivalent_kernel(block, kernels)))


def best_error(layer, target):
    """Returns the error no kernel goes below."""
    best = torch.linalg.solve(target.input, target.cross.T).T
    return float(target.error(best.reshape(kernel_of(layer).shape)))


@given(seed=st.integers(0, 99), other=st.integers(0, 99))
def test_errors_differ_as_those_of_the_data_do(seed, other):
    _, patches, outputs = data_of(LAYER)
    target = target_of(LAYER)

    def on_data(kernel):
        missed = outputs - patches @ kernel.flatten(1).T
        return (missed @ target.output * missed).sum() / len(patches)

    kernels = kernel_of(LAYER, seed=seed), kernel_of(LAYER, seed=other)
    expected = on_data(kernels[0]) - on_data(kernels[1])
    torch.testing.assert_close(target.error(kernels[0]) - target.error(kernels[1]), expected)


def test_damping_keeps_what_the_data_say_and_can_be_inverted():
    target = target_of(LAYER)
    goal = target.damped()
    for moment in (goal.input, goal.output):
        assert bool((torch.linalg.eigvalsh(moment) > 0).all())
    best, calmed = (torch.linalg.solve(t.input, t.cross.T) for t in (target, goal))
    assert float((best - calmed).norm() / best.norm()) < 1e-3


def test_directions_without_data_can_be_solved_for():
    nothing = torch.zeros(24, 24, dtype=torch.float64)
    target = Target(nothing, torch.zeros(6, 24, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64))
    block, kernels = start_of(LAYER, Family("S4"), 2)
    for found in (refine(block, kernels, LAYER.op, target), solve_last(block, kernels, LAYER.op, target)):
        assert bool(equivalent_kernel(block, found).isfinite().all())


@st.composite
def blocks(draw):
    """Draws a block with weights to start from: a pair, a pair of pairs, or three layers."""
    kind = draw(st.sampled_from(["pair", "two branches", "three layers", "linear"]))
    if kind == "linear":
        layer = linear("head", 7, 5)
        return layer, *start_of(layer, Family("S4"), draw(st.integers(1, 5)))
    if kind == "three layers":
        found = draw(st.sampled_from(list(tucker2.METHOD.candidates(LAYER))))
        return LAYER, found.blocks[0], tucker2.METHOD.factorise(kernel_of(LAYER), LAYER, PLAIN)(found)
    drawn = [draw(st.sampled_from(FAMILIES)) for _ in range(1 + (kind == "two branches"))]
    starts = [start_of(LAYER, f, draw(st.integers(1, max_rank(f, LAYER.op)))) for f in drawn]
    block = Block(branches=tuple(block.branches[0] for block, _ in starts))
    return LAYER, block, tuple(kernels[0] for _, kernels in starts)


def linear_target():
    torch.manual_seed(0)
    rows = torch.randn(100, 7, dtype=torch.float64).cumsum(1)
    wanted = rows @ torch.randn(7, 5, dtype=torch.float64) + torch.randn(100, 5, dtype=torch.float64)
    return Target(rows.T @ rows / 100, wanted.T @ rows / 100, torch.eye(5, dtype=torch.float64))


@settings(max_examples=30)
@given(case=blocks())
def test_refining_never_makes_it_worse_and_keeps_the_shapes(case):
    layer, block, kernels = case
    target = target_of(layer) if layer is LAYER else linear_target()
    found = refine(block, kernels, layer.op, target)
    before, after = (error_of(block, k, target.damped()) for k in (kernels, found))
    assert after <= before
    shapes = [[kernel.shape for kernel in branch] for branch in kernels]
    assert [[kernel.shape for kernel in branch] for branch in found] == shapes


@EVERY_FAMILY
def test_refining_at_full_rank_reaches_the_unconstrained_optimum(family):
    block, kernels = start_of(LAYER, family, max_rank(family, LAYER.op))
    goal = target_of(LAYER).damped()
    found = refine(block, kernels, LAYER.op, target_of(LAYER))
    best = best_error(LAYER, goal)
    before, after = (error_of(block, k, goal) - best for k in (kernels, found))
    assert before > 0.01
    assert -1e-9 < after < 1e-3 * before


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_refining_the_channel_svd_reaches_the_optimum_of_its_rank(rank):
    """Reduced-rank regression has a closed form: the discarded values of the whitened best kernel."""
    block, kernels = start_of(LAYER, Family("S4"), rank)
    goal = target_of(LAYER).damped()
    found = refine(block, kernels, LAYER.op, target_of(LAYER))
    best = torch.linalg.solve(goal.input, goal.cross.T).T
    roots = torch.linalg.cholesky(goal.output), torch.linalg.cholesky(goal.input)
    values = torch.linalg.svdvals(roots[0].T @ best @ roots[1])
    excess = error_of(block, found, goal) - best_error(LAYER, goal)
    assert excess == pytest.approx(float(values[rank:].square().sum()), rel=0.02)


def test_an_exact_block_is_left_alone():
    layer = conv("layer", 4, 6, size=9)
    block, kernels = start_of(layer, Family("S5"), 4)
    patches = sample_patches(seen_images(layer), layer.op, ALL, 0)
    moment = patches.T @ patches / len(patches)
    target = Target(moment, kernel_of(layer).flatten(1) @ moment, torch.eye(6, dtype=torch.float64))
    for found in (refine(block, kernels, layer.op, target), solve_last(block, kernels, layer.op, target)):
        torch.testing.assert_close(equivalent_kernel(block, found), kernel_of(layer), rtol=1e-3, atol=1e-4)


@EVERY_FAMILY
def test_the_last_layer_is_the_least_squares_solution_on_real_maps(family, monkeypatch):
    monkeypatch.setattr(quadratic, "INPUT_DAMPING", 1e-13)
    rank = min(2, max_rank(family, LAYER.op))
    block, kernels = start_of(LAYER, family, rank)
    seen, _, outputs = data_of(LAYER)
    first, last = block_layers(filled_block(block, kernels, None).double())[0]
    assert isinstance(last, nn.Conv2d)
    with torch.no_grad():
        rows = sample_patches(first(seen), op_of(last), ALL, 0)  # real inputs of the last layer
    solved = solve_last(block, kernels, LAYER.op, target_of(LAYER))[0][-1]
    width = rows.shape[1] // last.groups
    for group, wanted in enumerate(outputs.chunk(last.groups, dim=1)):
        regressors = rows[:, group * width : (group + 1) * width]
        expected = torch.linalg.lstsq(regressors, wanted).solution.T
        found = solved.chunk(last.groups)[group].flatten(1)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@EVERY_FAMILY
def test_solving_the_last_layer_helps_and_keeps_the_others(family):
    block, kernels = start_of(LAYER, family, min(2, max_rank(family, LAYER.op)))
    target = target_of(LAYER)
    found = solve_last(block, kernels, LAYER.op, target)
    assert error_of(block, found, target.damped()) < error_of(block, kernels, target.damped())
    assert torch.equal(found[0][0], kernels[0][0])
    heavy = Target(target.input, target.cross, torch.diag(torch.arange(1.0, 7.0, dtype=torch.float64)))
    again = solve_last(block, kernels, LAYER.op, heavy)
    torch.testing.assert_close(again[0][1], found[0][1])  # outputs share no weights
