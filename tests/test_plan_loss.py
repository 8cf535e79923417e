"""The loss of plans: the divergence of their networks, cut short only where that changes nothing."""

import itertools
import math

import pytest
from small_nets import INPUT_SHAPE, TARGETS, images, small_net
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.pipeline.engine import build
from edgecompress.pipeline.evaluate import divergence, log_probabilities
from edgecompress.pipeline.plan_loss import PlanLoss, differing
from edgecompress.pipeline.preparation import Recipe, Setting, prepare
from edgecompress.search.contract import shape_costs

RECIPE = Recipe(factors="plain", refit="none", local_search=False, batch_norm="keep")
BATCHES = [images(20, seed=i) for i in range(2)]


@pytest.fixture(scope="module")
def prepared():
    net = small_net()
    layers, _ = find_layers(net, TARGETS, INPUT_SHAPE)
    costs = shape_costs(
        {"macs": float(total_macs(profile(net, INPUT_SHAPE))), "params": float(total_params(net))}
    )
    return prepare(Setting(net, layers, costs), RECIPE, NO_PROGRESS)


def plans_of(prepared, count):
    """Returns plans of which neighbours differ in one or two layers."""
    options = itertools.cycle(prepared.options)
    plans = [{o.layer.name: o.candidates[-1] for o in prepared.options}]
    for i, one in zip(range(count - 1), options, strict=False):
        new = dict(plans[-1])
        new.pop(one.layer.name, None)
        if i % 3:
            new[one.layer.name] = one.candidates[(7 * i) % len(one.candidates)]
        plans.append(new)
    return plans


def loss_of(prepared, start):
    dense = prepared.setting.model

    def block(choices, name):
        network = build(prepared, choices)
        return network.get_submodule(name)

    names = [o.layer.name for o in prepared.options]
    return PlanLoss(build(prepared, start), start, names, block, BATCHES, dense)


def true_loss(prepared, plan):
    return divergence(build(prepared, plan), BATCHES, log_probabilities(prepared.setting.model, BATCHES))


def test_the_loss_is_the_divergence_from_the_dense_model(prepared):
    plans = plans_of(prepared, 8)
    loss = loss_of(prepared, plans[0])
    for before, plan in itertools.pairwise(plans):
        assert loss(plan, near=before, bar=math.inf) == pytest.approx(true_loss(prepared, plan), rel=1e-4)


def test_the_dense_plan_loses_nothing(prepared):
    assert loss_of(prepared, plans_of(prepared, 1)[0])({}, near={}, bar=1.0) == pytest.approx(0, abs=1e-6)


def test_what_a_plan_is_near_to_does_not_matter(prepared):
    plans = plans_of(prepared, 6)
    fresh = [loss_of(prepared, plan)(plan, near=plan, bar=math.inf) for plan in plans]
    loss = loss_of(prepared, plans[0])
    for i, j in itertools.product(range(6), range(6)):
        assert loss(plans[i], near=plans[j], bar=math.inf) == pytest.approx(fresh[i], rel=1e-5)


def test_a_plan_that_has_lost_is_not_below_the_bar_and_others_are_exact(prepared):
    plans = plans_of(prepared, 6)
    loss = loss_of(prepared, plans[0])
    for plan in plans:
        whole = loss(plan, near=plans[0], bar=math.inf)
        for bar in (0.1 * whole, 0.9 * whole, whole):
            assert bar <= loss(plan, near=plans[0], bar=bar) <= max(whole, bar)
        assert loss(plan, near=plans[0], bar=1.001 * whole) == whole


class Counting(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.images = net, 0

    def forward(self, x):
        self.images += len(x)
        return self.net(x)


def test_a_hopeless_plan_is_stopped_at_the_first_images(prepared, monkeypatch):
    monkeypatch.setattr("edgecompress.pipeline.plan_loss.IMAGES_PER_STOP", 4)
    plan = plans_of(prepared, 1)[0]
    counting = Counting(build(prepared, plan))
    names = [f"net.{o.layer.name}" for o in prepared.options]
    loss = PlanLoss(counting, plan, names, lambda *_: nn.Identity(), BATCHES, prepared.setting.model)
    counting.images = 0
    whole = loss(plan, near=plan, bar=math.inf)
    assert counting.images == 40
    loss(plan, near=plan, bar=whole / 40)  # less than the mean image costs, and the worst come first
    assert counting.images == 44
    loss(plan, near=plan, bar=whole / 2)
    assert counting.images <= 44 + 20


def test_outputs_that_are_no_numbers_lose(prepared):
    plan = plans_of(prepared, 1)[0]
    names = [o.layer.name for o in prepared.options]

    def broken(choices, name):
        layer = build(prepared, choices).get_submodule(name)
        next(layer.parameters()).data.fill_(math.nan)
        return layer

    loss = PlanLoss(build(prepared, plan), plan, names, broken, BATCHES, prepared.setting.model)
    without = {name: choice for name, choice in plan.items() if name != "wide"}
    assert loss(without, near=plan, bar=0.5) == 0.5
    assert loss(without, near=plan, bar=math.inf) == math.inf


def test_layers_that_differ_are_told_in_a_fixed_order(prepared):
    first = plans_of(prepared, 1)[0]
    assert differing(first, first) == []
    assert differing(first, {}) == differing({}, first) == sorted(first)
