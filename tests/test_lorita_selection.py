"""The selections of LoRITa: shares of pools, and cuts by the true loss."""

import dataclasses
import math

import pytest
import torch
from rank_problems import LAYERS, conv, linear, problem_of

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import BudgetError, ConfigError
from edgecompress.nets.families import Family, to_matrices
from edgecompress.search.greedy import cut_ranks
from edgecompress.search.ranks import lorita_global

MANY = (
    conv("a", 12, 24),
    conv("b", 16, 16, size=6),
    conv("c", 8, 20, stride=2),
    linear("blocks.0.attn.q", 24, 24),
    linear("blocks.0.attn.proj", 24, 20),
    linear("blocks.0.mlp.fc1", 16, 32),
    linear("blocks.0.mlp.fc2", 32, 16),
)


def values_of(problem, name):
    return torch.linalg.svdvals(to_matrices(Family("S4"), problem.kernels[name]))[0]


def kept_share(problem, choices, names, *, relative):
    """Returns which share of a pool is kept; checks that it is the largest values, 1 rank at least."""
    kept, dropped, total = [], [], 0
    for name in names:
        values = values_of(problem, name)
        values = values / values[0] if relative else values
        rank = choices[name].ranks[0] if name in choices else len(values)
        kept += values[1:rank].tolist()
        dropped += values[rank:].tolist()
        total += len(values)
    assert min(kept, default=math.inf) >= max(dropped, default=-math.inf) * (1 - 1e-9)
    return 1 - len(dropped) / total


def test_every_pool_keeps_the_largest_of_its_values_and_the_same_share():
    problem = problem_of(MANY, share=0.45)
    choices = lorita_global.SELECTION.select(problem)
    assert choices.keys() == {layer.name for layer in MANY}
    shares = [
        kept_share(problem, choices, ["a", "b", "c"], relative=True),
        kept_share(problem, choices, [layer.name for layer in MANY[3:5]], relative=False),
        kept_share(problem, choices, [layer.name for layer in MANY[5:]], relative=False),
    ]
    assert max(shares) - min(shares) <= 1 / 32


def test_scaling_a_convolution_changes_nothing_and_scaling_a_linear_layer_does():
    problem = problem_of(MANY, share=0.45)
    choices = lorita_global.SELECTION.select(problem)

    def scaled(name):
        kernels = {**problem.kernels, name: problem.kernels[name] * 7.0}
        return lorita_global.SELECTION.select(dataclasses.replace(problem, kernels=kernels))

    assert scaled("a") == choices
    assert scaled("blocks.0.attn.q") != choices


# Cuts


def energy_loss(problem):
    """Returns a loss: the share of each layer's energy that is cut, squared and weighed by layer."""

    def exact(choices):
        total = 0.0
        for weight, (name, choice) in enumerate(sorted(choices.items()), start=1):
            values = values_of(problem, name)
            total += weight**0.5 * float(values[choice.ranks[0] :].square().sum() / values.square().sum())
        return total

    def loss(choices, /, *, near, bar):
        assert len({*choices.items()} ^ {*near.items()}) <= 2, "one layer is cut at a time"
        return min(exact(choices), bar)

    return loss, exact


@pytest.fixture(scope="module")
def problem():
    return problem_of(LAYERS, share=0.6)


def test_cuts_end_within_one_rank_of_the_limit(problem):
    loss, exact = energy_loss(problem)
    found = cut_ranks(problem, loss, progress=NO_PROGRESS)
    assert problem.total(found.choices) <= problem.limit
    assert found.loss == pytest.approx(exact(found.choices))
    assert {choice.family for choice in found.choices.values()} == {"S4(1)"}
    per_rank = max(2 * layer.in_size[0] ** 2 * layer.op.outputs * 9 * 24 for layer in LAYERS)
    assert problem.limit - problem.total(found.choices) < per_rank


def test_each_cut_is_the_one_that_loses_least(problem):
    """Repeats the search by its definition, from the plans it tries."""
    loss, exact = energy_loss(problem)
    rounds = []

    def watched(choices, /, *, near, bar):
        if bar == math.inf:
            rounds.append((near, []))
        rounds[-1][1].append(choices)
        return loss(choices, near=near, bar=bar)

    found = cut_ranks(problem, watched, progress=NO_PROGRESS)
    assert found.rounds == len(rounds) and found.evaluations == sum(len(tried) for _, tried in rounds)
    ends = [near for near, _ in rounds[1:]] + [found.choices]
    moved = 0
    for (near, tried), after in zip(rounds, ends, strict=True):
        best = min(tried, key=exact)
        if after == near:  # the grid was too coarse
            assert problem.total(best) <= problem.limit
        else:
            assert exact(after) == exact(best)
            moved += 1
    assert moved > 5


def test_a_dense_model_within_the_limit_is_not_cut():
    problem = problem_of(LAYERS)
    found = cut_ranks(problem, energy_loss(problem)[0], progress=NO_PROGRESS)
    assert found.choices == {} and found.evaluations == 0


def test_cuts_that_cannot_meet_the_limit_say_what_could_be(problem):
    bare = dataclasses.replace(problem, limit=problem.fixed_cost)
    with pytest.raises(BudgetError, match="nearest reachable"):
        cut_ranks(bare, energy_loss(bare)[0], progress=NO_PROGRESS)
    with pytest.raises(ConfigError, match="--methods lowrank"):
        other = problem_of(LAYERS[:2], share=0.8, methods=("tucker2",))
        cut_ranks(other, energy_loss(other)[0], progress=NO_PROGRESS)
