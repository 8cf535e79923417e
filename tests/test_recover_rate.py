"""Learning rates of a recovery: kept where a network bears them, lowered where it does not."""

import copy
from dataclasses import replace

import pytest
import torch
from made_trainings import split_of, tiny_net, training_images

from edgecompress.pipeline.recover_judge import SelectionJudge
from edgecompress.pipeline.recover_rate import LEAST_TRIED, MOST_TRIED, SHARES, bearable_share
from edgecompress.pipeline.recover_recipes import PRESETS, pick_recipe
from edgecompress.train.mimic import mimicking
from edgecompress.train.objectives import from_labels


@pytest.fixture(scope="module")
def dense():
    return tiny_net().eval().requires_grad_(False)


@pytest.fixture
def network(dense):
    found = copy.deepcopy(dense).requires_grad_(True)
    with torch.no_grad():
        found[3].weight.mul_(0.9)
    return found


def share(network, dense, lr, *, steps=200):
    training = replace(PRESETS["ours"].distill, lr=lr)
    judge = SelectionJudge(dense, split_of(40, seed=3), True, 40).likeness
    before = copy.deepcopy(network.state_dict())
    found = bearable_share(
        network, mimicking(dense, (), training.mix), training_images(), training, steps, judge
    )
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    return found


def test_a_rate_that_helps_is_kept(network, dense):
    assert share(network, dense, 1e-4) == 1.0


def test_a_rate_that_ruins_the_network_is_lowered_until_it_does_not(network, dense):
    found = [share(network, dense, lr) for lr in (1e-4, 1e-2, 0.1, 1e6)]
    assert found == sorted(found, reverse=True) and set(found) <= set(SHARES)
    assert found[-1] == SHARES[-1]  # none was bearable
    assert 0 < found[2] < 1


def test_a_loss_that_is_not_finite_is_not_bearable(network, dense):
    training = replace(PRESETS["ours"].full, lr=1e-4)
    judge = SelectionJudge(dense, split_of(40, seed=3), True, 40).rightness

    def broken(one, batch):
        return from_labels()(one, batch) * float("nan")

    assert bearable_share(network, broken, training_images(), training, 200, judge) == SHARES[-1]


@pytest.mark.parametrize(("steps", "tried"), [(1, LEAST_TRIED), (1000, 40), (10**6, MOST_TRIED)])
def test_a_try_is_short(network, dense, steps, tried):
    seen = []

    def counted(one, batch):
        seen.append(batch.step)
        return mimicking(dense, (), PRESETS["ours"].distill.mix)(one, batch)

    training = replace(PRESETS["ours"].distill, lr=1e-6)
    judge = SelectionJudge(dense, split_of(40, seed=3), True, 40).likeness
    assert bearable_share(network, counted, training_images(), training, steps, judge) == 1.0
    assert seen == list(range(tried))


def test_rates_of_papers_and_of_users_are_not_touched():
    assert all(PRESETS["ours"].of(level).tries_rates for level in ("mimic", "synthetic", "distill", "full"))
    assert not any(PRESETS[name].full.tries_rates for name in PRESETS if name != "ours")
    assert not pick_recipe("ours", lr=0.5).full.tries_rates
