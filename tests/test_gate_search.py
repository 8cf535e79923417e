"""Searches for gates: exact zeros, the right images for each copy, and penalties that follow time."""

import copy

import pytest
import torch
from group_nets import TINY_GROUPS, TINY_SHAPE, group, tiny_net
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import ConfigError
from edgecompress.search import gate_search
from edgecompress.search.gate_search import joint_search, l1_weights, rarts_search, split_in_half
from edgecompress.search.score_contract import ScoreSettings

SEARCHES = {"joint": joint_search, "rarts": rarts_search}
EACH_SEARCH = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)


def batches(count=32):
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(count, *TINY_SHAPE, dtype=torch.float64, generator=generator)
    return [(images[: count // 2], None), (images[count // 2 :], None)]


def found_by(search, model=None, groups=TINY_GROUPS, data=None, **options):
    settings = ScoreSettings(**{"steps": 10, "batch_images": 8, **options})
    model = tiny_net() if model is None else model
    return search(model, groups, batches() if data is None else data, settings, 0, NO_PROGRESS)


def with_dead_units(model, dead):
    with torch.no_grad():
        model.fc2.weight[:, dead] = 0
    return model


@EACH_SEARCH
def test_gates_nothing_depends_on_become_exactly_zero_after_the_predicted_steps(search):
    dead = [0, 7]
    options = {"alpha_lr": 0.1, "l1": 1.25, "train_weights": False}  # 0.125 a step: exact in binary
    gates = [
        found_by(search, with_dead_units(tiny_net(), dead), steps=steps, **options).alphas["fc1"]
        for steps in (7, 8)
    ]
    torch.testing.assert_close(gates[0][dead], torch.full((2,), 0.125, dtype=torch.float64))
    assert gates[1][dead].tolist() == [0, 0]


@EACH_SEARCH
def test_a_stronger_penalty_makes_more_zeros(search):
    zeros = [
        sum(int((a == 0).sum()) for a in found_by(search, l1=l1, steps=15).alphas.values())
        for l1 in (0.0, 0.75, 3.0)
    ]
    assert zeros[0] == 0 < zeros[1] < zeros[2]


@EACH_SEARCH
def test_the_given_network_is_left_alone_and_weights_are_trained_on_request(search):
    model = tiny_net()
    before = copy.deepcopy(model.state_dict())
    trained, frozen = (found_by(search, model, train_weights=flag, lr=0.05).network for flag in (True, False))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not torch.equal(trained.conv1.weight, model.conv1.weight)
    assert torch.equal(frozen.conv1.weight, model.conv1.weight) and not trained.training
    assert torch.equal(trained.bn1.running_mean, model.bn1.running_mean)


@EACH_SEARCH
def test_statistics_of_batch_norms_move_only_when_asked_for(search):
    found = found_by(search, train_statistics=True).network
    assert not torch.equal(found.bn1.running_mean, tiny_net().bn1.running_mean)


def test_learning_rate_and_penalty_mean_the_same_in_both_searches():
    image = batches()[0][0][:1]
    same = [(image.expand(8, -1, -1, -1), torch.full((8,), 2))]
    first, second = (found_by(search, data=same, steps=1).alphas for search in SEARCHES.values())
    for name in first:
        torch.testing.assert_close(first[name], second[name])
        assert float((first[name] - 1).abs().max()) > 0.005  # more than the penalty alone


@EACH_SEARCH
def test_losses_fall_without_a_penalty(search):
    torch.manual_seed(0)
    labels = torch.randint(0, 5, (32,))
    known = [(x, labels[16 * i : 16 * i + 16]) for i, (x, _) in enumerate(batches())]
    losses = found_by(search, data=known, steps=30, batch_images=16, l1=0.0, alpha_lr=0.01, lr=0.01).losses
    assert len(losses) == 30 and sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_every_copy_sees_its_own_half_and_has_its_own_statistics(monkeypatch):
    seen, networks = {}, []

    class Watched(gate_search._Loss):
        def __call__(self, *args):
            seen.setdefault(id(self.network), set()).update(self.seen.tolist())
            networks.append(self.network)
            return super().__call__(*args)

    monkeypatch.setattr(gate_search, "_Loss", Watched)
    found_by(rarts_search, steps=12, train_statistics=True)
    first, second = seen.values()
    assert first.isdisjoint(second) and first | second == set(range(32))
    w_net, u_net = networks[0], networks[1]  # the auxiliary copy goes first
    assert w_net is not u_net and len(networks) == 24  # two passes a step
    assert not torch.equal(w_net.bn1.running_mean, u_net.bn1.running_mean)


def test_a_strong_coupling_keeps_the_copies_together(monkeypatch):
    apart = []
    for coupling in (0.0, 20.0):
        nets = {}

        class Watched(gate_search._Loss):
            def __call__(self, *args, nets=nets):
                nets[id(self.network)] = self.network
                return super().__call__(*args)

        monkeypatch.setattr(gate_search, "_Loss", Watched)
        found_by(rarts_search, steps=30, coupling=coupling, lr=0.02, momentum=0.0, auxiliary=1.0)
        u, w = (nn.utils.parameters_to_vector(net.parameters()) for net in nets.values())
        apart.append(float((u - w).detach().norm()))
    assert 0 < apart[1] < 0.4 * apart[0]


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_halves_are_disjoint_whole_equal_and_drawn(count):
    first, second = split_in_half(count, 0)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(count))
    assert abs(len(first) - len(second)) <= 1
    assert all(torch.equal(a, b) for a, b in zip(split_in_half(count, 0), (first, second), strict=True))
    if count > 9:
        assert not torch.equal(split_in_half(count, 1)[0], first)
    with pytest.raises(ConfigError, match="both copies; there is 1"):
        split_in_half(1, 0)


GROUPS = [group("a", "channels", 10, [], []), group("b", "hidden", 30, [], [])]


def test_equal_times_are_the_plain_penalty_and_the_mean_stays():
    assert l1_weights(GROUPS, None) == {"a": 1, "b": 1} == l1_weights(GROUPS, {"a": 0.2, "b": 0.2})
    found = l1_weights(GROUPS, {"a": 3.0, "b": 1.0})
    assert found["a"] == 3 * found["b"] and 10 * found["a"] + 30 * found["b"] == pytest.approx(40)
    plain, timed = (
        found_by(joint_search, unit_ms=ms).alphas
        for ms in (None, dict.fromkeys(("conv1", "conv2", "fc1"), 0.5))
    )
    assert all(torch.equal(plain[name], timed[name]) for name in plain)


@EACH_SEARCH
def test_groups_that_take_longer_are_penalised_more(search):
    slow = {"conv1": 0.1, "conv2": 0.1, "fc1": 1.0}
    plain, timed = (found_by(search, unit_ms=ms, l1=0.5, steps=8).alphas for ms in (None, slow))
    assert timed["fc1"].sum() < plain["fc1"].sum() and timed["conv1"].sum() > plain["conv1"].sum()


@pytest.mark.parametrize("ms", [{"a": 1.0}, {"a": 1.0, "b": -1.0}, {"a": 1.0, "b": float("nan")}])
def test_groups_without_a_time_are_named(ms):
    with pytest.raises(ConfigError, match="b: needs the time of one unit"):
        l1_weights(GROUPS, ms)
    with pytest.raises(ConfigError, match="no group takes any time"):
        l1_weights(GROUPS, {"a": 0.0, "b": 0.0})
