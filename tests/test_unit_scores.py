"""Scores of units: what every rule keeps, and what each one says about networks whose answer is known."""

import pytest
import torch
from group_nets import (
    TINY_GROUPS,
    TINY_SHAPE,
    cut,
    embedded,
    fashion_batches,
    group,
    tiny_net,
)
from small_nets import hooks_of, same_state, state_of
from torch import nn

from edgecompress.core.plugins import discover
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import ConfigError, DataError
from edgecompress.nets.gates import gated
from edgecompress.search import unit_scores
from edgecompress.search.score_contract import Scores, ScoreSettings

RULES = discover(unit_scores, Scores)
QUICK = ScoreSettings(steps=4, batch_images=6)
EVERY_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
CONVS = TINY_GROUPS[:2]


def batches(count=24, *, labels=False, seed=3):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, *TINY_SHAPE, dtype=torch.float64, generator=generator)
    known = torch.randint(0, 5, (count,), generator=generator)
    cuts = range(0, count, 8)
    return [(images[i : i + 8], known[i : i + 8] if labels else None) for i in cuts]


def scored(rule, model=None, groups=CONVS, found=None, seed=0):
    model = tiny_net() if model is None else model
    return rule.score(model, groups, batches() if found is None else found, QUICK, seed, NO_PROGRESS)


@pytest.mark.parametrize("labels", [True, False], ids=["labels", "no labels"])
@EVERY_RULE
def test_every_unit_has_a_number_and_the_network_is_left_alone(rule, labels):
    model = tiny_net()
    state, hooks = state_of(model), hooks_of(model)
    found = scored(rule, model, found=batches(labels=labels))
    assert list(found) == [g.name for g in CONVS]
    for g in CONVS:
        assert found[g.name].shape == (g.width,) and not found[g.name].requires_grad
        assert bool(found[g.name].isfinite().all()) and float(found[g.name].min()) >= 0
        assert len(found[g.name].unique()) > g.width / 2
    assert same_state(model, state) and hooks_of(model) == hooks and not model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@EVERY_RULE
def test_the_same_seed_gives_the_same_scores(rule):
    first, second = scored(rule), scored(rule)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ["random", "taylor", "rarts", "joint", "reconstruction"])
def test_another_seed_gives_others(name):
    first, second = (scored(RULES[name], seed=seed) for seed in (0, 1))
    assert any(not torch.equal(first[n], second[n]) for n in first)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.needs_images])
def test_rules_that_need_images_say_so(name):
    with pytest.raises(DataError, match="images"):
        RULES[name].score(tiny_net(), CONVS, [], QUICK, 0, NO_PROGRESS)


def with_dead_units(dead=(1, 4, 6)):
    """Returns a network in which some channels and hidden units are neither made nor read."""
    model = tiny_net()
    with torch.no_grad():
        for i in dead:
            model.bn1.weight[i] = model.bn1.bias[i] = 0
            model.conv1.weight[i] = 0
            model.conv2.weight[:, i] = 0
            model.fc1.weight[i] = model.fc1.bias[i] = 0
            model.fc2.weight[:, i] = 0
    return model, set(dead)


@pytest.mark.parametrize("name", ["magnitude", "taylor", "fisher", "reconstruction"])
def test_units_that_do_nothing_have_the_lowest_scores(name):
    model, dead = with_dead_units()
    found = scored(RULES[name], model, (TINY_GROUPS[0], TINY_GROUPS[2]))
    for one in found.values():
        others = [float(score) for i, score in enumerate(one) if i not in dead]
        assert float(one[list(dead)].max()) <= min(others) and max(others) > 0.01 * one.sum()


def test_gamma_reads_the_batch_norm_and_refuses_other_gates():
    model = tiny_net()
    assert torch.equal(scored(RULES["gamma"], model)["conv1"], model.bn1.weight.detach().abs())
    with pytest.raises(ConfigError, match="fc1: gamma needs a batch norm"):
        scored(RULES["gamma"], model, TINY_GROUPS)


def test_magnitude_is_the_root_mean_square_of_all_weights_of_a_unit():
    model = nn.Sequential(nn.Linear(2, 6), nn.Linear(12, 1)).double()
    one = group("0", "hidden", 3, [cut("0", "outputs", repeats=2), cut("1", "inputs", repeats=2, run=2)], [])
    found = RULES["magnitude"].score(model, [one], [], QUICK, 0, NO_PROGRESS)["0"]
    made, read = model[0].weight.detach(), model[1].weight.detach()
    for i in range(3):
        own = torch.cat([made[i], made[3 + i], read[0, [2 * i, 2 * i + 1, 6 + 2 * i, 7 + 2 * i]]])
        assert float(found[i]) == pytest.approx(float(own.square().mean().sqrt()))
    nothing = group("0", "hidden", 3, [], [])
    with pytest.raises(ConfigError, match="0: no layer with weights"):
        RULES["magnitude"].score(model, [nothing], [], QUICK, 0, NO_PROGRESS)


def test_taylor_and_fisher_are_means_over_images_not_batches():
    model = tiny_net()
    known = batches(labels=True)
    one_by_one = [(x[i : i + 1], y[i : i + 1]) for x, y in known for i in range(len(x))]
    for name in ("taylor", "fisher"):
        together, apart = (scored(RULES[name], model, found=b)["conv2"] for b in (known, one_by_one))
        torch.testing.assert_close(together, apart)
    first, second = (scored(RULES[name], model, found=known)["conv2"] for name in ("taylor", "fisher"))
    assert bool((second >= first.square() * (1 - 1e-9)).all())  # the mean of squares is the larger


def test_fisher_predicts_the_divergence_of_fading_one_unit():
    model, found = tiny_net(), batches(600)
    with torch.no_grad():
        model.fc2.weight.mul_(5)
    images = torch.cat([x for x, _ in found])
    before = model(images).log_softmax(1).detach()
    predicted = scored(RULES["fisher"], model, found=found)["conv2"]
    unit, size = int(predicted.argmax()), 0.02
    alphas = {g.name: torch.ones(g.width, dtype=torch.float64) for g in CONVS}
    alphas["conv2"][unit] -= size
    with gated(model, CONVS, alphas), torch.no_grad():
        after = model(images).log_softmax(1)
    divergence = float((before.exp() * (before - after)).sum(1).mean())
    assert divergence == pytest.approx(size**2 / 2 * float(predicted[unit]), rel=0.25)


@pytest.mark.parametrize("name", ["taylor", "fisher", "reconstruction"])
def test_scores_of_the_embedded_transformer_need_no_labels(name):
    model, groups = embedded("fashion_vit")
    groups, (found, _) = groups[2:4], fashion_batches(64, size=32)
    with_labels = RULES[name].score(model, groups, found, QUICK, 0, NO_PROGRESS)
    without = RULES[name].score(model, groups, [(x, None) for x, _ in found], QUICK, 0, NO_PROGRESS)
    for g in groups:
        pair = torch.stack([with_labels[g.name], without[g.name]]).double()
        ranks = pair.argsort(1).argsort(1).double()
        assert float(torch.corrcoef(ranks)[0, 1]) > 0.3


def test_settings_that_cannot_work_are_refused():
    for bad in ({"steps": 0}, {"lr": -1.0}, {"l1": -0.1}, {"momentum": 1.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(bad))} .* of a search for gates"):
            ScoreSettings(**bad)
