"""What every optimiser keeps, whichever rule it follows; which parameters decay; which settings go."""

import copy
import itertools
import re
from pathlib import Path

import pytest
import torch
from made_steps import batch, closure_of, hessian, normed_net, vector, weights_of
from torch import nn
from torch.nn.utils import parametrize

from edgecompress.core.plugins import discover
from edgecompress.errors import ConfigError
from edgecompress.nets import zoo
from edgecompress.nets.entries import Entry
from edgecompress.pipeline.listing import list_kind
from edgecompress.train import optimisers
from edgecompress.train.checkpoint import load_state, save_state
from edgecompress.train.optimiser_contract import (
    Optimiser,
    OptimiserSettings,
    begin_epoch,
    end_epoch,
    parameter_groups,
)
from edgecompress.train.optimisers.pugd import PUGDRTS

OPTIMISERS = discover(optimisers, Optimiser)
EVERY = pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
SETTINGS = OptimiserSettings(lr=0.05)


class Bowl(nn.Module):
    """The quadratic x H x / 2, as a network without input."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.ones(4, 2, dtype=torch.float64))
        self.register_buffer("hessian", hessian(8) / 10)

    def loss(self):
        return self.x.flatten() @ self.hessian @ self.x.flatten() / 2


def bowl_closure(bowl, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = bowl.loss()
        loss.backward()
        return loss.detach()

    return closure


def run(optimiser, net, steps, *, settings=SETTINGS, state=None):
    """Takes steps on batches that follow from their number, and returns the optimiser."""
    optimizer = optimiser.make(net, settings)
    if state is not None:
        optimizer.load_state_dict(state)
    for number in steps:
        begin_epoch(optimizer, number // 3, 4)
        data = batch(seed=number, dtype=next(net.parameters()).dtype)
        optimizer.step(closure_of(net, optimizer, data))
        if number % 3 == 2:
            end_epoch(optimizer, 1.0, 1.0 + number)
    return optimizer


def test_there_are_several():
    expected = {"sgd", "adamw", "adam-l2", "pugd", "sam", "asam"}
    assert OPTIMISERS.keys() >= expected
    assert {item.name for item in list_kind("optimisers").items} == OPTIMISERS.keys()


@EVERY
def test_it_goes_downhill(optimiser):
    bowl = Bowl()
    optimizer = optimiser.make(bowl, OptimiserSettings(lr=0.02, momentum=0.5, weight_decay=0.0))
    first = float(bowl.loss().detach())
    for _ in range(150):
        optimizer.step(bowl_closure(bowl, optimizer))
    assert float(bowl.loss().detach()) < 0.1 * first


@EVERY
def test_a_step_returns_the_loss_before_it(optimiser):
    bowl = Bowl()
    before = float(bowl.loss().detach())
    optimizer = optimiser.make(bowl, SETTINGS)
    assert float(optimizer.step(bowl_closure(bowl, optimizer))) == before


@EVERY
def test_a_step_calls_the_closure_as_often_as_it_says(optimiser):
    net, calls = normed_net(), []
    optimizer = optimiser.make(net, SETTINGS)
    optimizer.step(closure_of(net, optimizer, calls=calls))
    assert len(calls) == optimiser.passes


@EVERY
def test_it_goes_on_from_a_file_to_the_same_bits(optimiser, tmp_path):
    whole, half, rest = (normed_net(dtype=torch.float32) for _ in range(3))
    run(optimiser, whole, range(10))
    state = {"optimiser": run(optimiser, half, range(4)).state_dict(), "net": half.state_dict()}
    save_state(tmp_path / "state", state, "test")
    loaded = load_state(tmp_path / "state", "test")
    rest.load_state_dict(loaded["net"])
    run(optimiser, rest, range(4, 10), state=loaded["optimiser"])
    for name, value in whole.state_dict().items():
        assert torch.equal(value, rest.state_dict()[name]), name


@EVERY
def test_parameters_without_a_gradient_are_left_alone(optimiser):
    net = normed_net()
    net[0].weight.requires_grad_(False)
    before = weights_of(net)
    run(optimiser, net, range(3))
    assert torch.equal(net[0].weight, before["0.weight"])
    assert not torch.equal(net[5].weight, before["5.weight"])


@EVERY
def test_without_a_learning_rate_weights_stay_to_the_bit(optimiser):
    net = normed_net(dtype=torch.float32)
    before = vector(net.parameters())
    run(optimiser, net, range(4), settings=OptimiserSettings(lr=0.0))
    assert torch.equal(vector(net.parameters()), before)


@EVERY
def test_every_step_of_every_process_is_the_same(optimiser):
    first, second = normed_net(), normed_net()
    run(optimiser, first, range(4))
    run(optimiser, second, range(4))
    assert torch.equal(vector(first.parameters()), vector(second.parameters()))


@EVERY
def test_batch_norms_see_each_batch_once(optimiser):
    net = normed_net()
    run(optimiser, net, range(4))
    assert int(net[1].num_batches_tracked) == 4


@EVERY
def test_only_weights_of_layers_decay(optimiser):
    net = normed_net()
    with torch.no_grad():
        net[1].bias.fill_(1.0)
    plain, pulled = copy.deepcopy(net), copy.deepcopy(net)
    for each, decay in ((plain, 0.0), (pulled, 0.1)):
        optimizer = optimiser.make(each, OptimiserSettings(lr=0.01, momentum=0.0, weight_decay=decay))
        optimizer.step(closure_of(each, optimizer))
    moved = {
        name
        for (name, one), other in zip(plain.named_parameters(), pulled.parameters(), strict=True)
        if not torch.equal(one, other)
    }
    assert moved == {"0.weight", "5.weight"}


REFUSED = {
    "sgd": {"radius", "scale", "timing"},
    "adamw": {"radius", "scale", "timing", "nesterov"},
    "adam-l2": {"radius", "scale", "timing", "nesterov"},
    "pugd": set(),
    "sam": {"scale"},
    "asam": {"scale"},
}
GIVEN = {"radius": "0.5", "scale": "0.5", "timing": "gap", "nesterov": True}


@pytest.mark.parametrize(("name", "field"), [*itertools.product(REFUSED, GIVEN)])
def test_a_setting_is_used_or_refused(name, field):
    settings = OptimiserSettings(**{field: GIVEN[field]})
    if field in REFUSED[name]:
        with pytest.raises(ConfigError, match=rf"{name}.* has no {field}"):
            OPTIMISERS[name].make(normed_net(), settings)
    else:
        optimizer = OPTIMISERS[name].make(normed_net(), settings)
        found = {
            "radius": lambda: str(optimizer.radius),
            "scale": lambda: str(optimizer.scale),
            "timing": lambda: optimizer.timing.kind,
            "nesterov": lambda: optimizer.param_groups[0]["nesterov"],
        }
        assert found[field]() == GIVEN[field]


@pytest.mark.parametrize("name", ["pugd", "sam", "asam"])
def test_a_radius_is_what_is_usual_unless_given(name):
    usual = {"pugd": 1.0, "sam": 0.05, "asam": 0.5}
    assert OPTIMISERS[name].make(normed_net(), SETTINGS).radius_now == usual[name]


def test_learning_rate_and_momentum_arrive():
    settings = OptimiserSettings(lr=0.3, momentum=0.7, weight_decay=0.2)
    for name, optimiser in OPTIMISERS.items():
        decayed, others = optimiser.make(normed_net(), settings).param_groups
        assert decayed["lr"] == others["lr"] == 0.3
        assert (decayed["weight_decay"], others["weight_decay"]) == (0.2, 0.0)
        assert (decayed["betas"][0] if "adam" in name else decayed["momentum"]) == 0.7


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"lr": -1.0}, "lr -1.0"),
        ({"lr": float("nan")}, "lr nan"),
        ({"momentum": 1.0}, "below 1"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"momentum": 0.0, "nesterov": True}, "nesterov needs momentum"),
        ({"radius": "isin:0:2"}, "above 0"),
        ({"scale": "much"}, "not understood"),
        ({"timing": "soon"}, "not understood"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        OptimiserSettings(**wrong)


def test_torchs_own_optimisers_need_not_know_where_training_is():
    optimizer = torch.optim.SGD(normed_net().parameters())
    before = optimizer.state_dict()
    begin_epoch(optimizer, 0, 3)
    end_epoch(optimizer, 1.0, None)
    assert optimizer.state_dict() == before


def test_others_are_told():
    optimizer = PUGDRTS(normed_net().parameters(), lr=0.1)
    begin_epoch(optimizer, 2, 3)
    assert optimizer.state_dict()["two_pass"]["epoch"] == 2


# Which parameters decay


def decayed_names(net):
    groups = parameter_groups(net, 0.1)
    decayed = {id(one) for group in groups if group["weight_decay"] for one in group["params"]}
    everything = [one for group in groups for one in group["params"]]
    assert sorted(map(id, everything)) == sorted(map(id, net.parameters()))
    return {name for name, one in net.named_parameters() if id(one) in decayed}


@pytest.mark.parametrize("name", ["fashion_resnet", "fashion_vit", "resnet20"])
def test_all_layers_of_models_decay_and_nothing_else(name):
    net = discover(zoo, Entry)[name].build(10)
    layers = {
        f"{place}.weight" for place, each in net.named_modules() if isinstance(each, nn.Conv2d | nn.Linear)
    }
    assert decayed_names(net) == layers
    assert not any("pos" in place or "norm" in place for place in layers)


def test_projections_of_attention_decay_and_its_biases_do_not():
    net = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    assert decayed_names(net) == {"in_proj_weight", "out_proj.weight"}


def test_embeddings_and_tokens_do_not_decay():
    net = nn.Module()
    net.table, net.token = nn.Embedding(3, 4), nn.Parameter(torch.zeros(1, 1, 4))
    assert decayed_names(net) == set()
    assert len(parameter_groups(net, 0.1)) == 1


class Halves(nn.Module):
    def forward(self, left, right):
        return left @ right

    def right_inverse(self, weight):
        return weight, torch.eye(weight.shape[1])


def test_factors_of_a_weight_decay():
    net = nn.Sequential(nn.Linear(3, 2))
    parametrize.register_parametrization(net[0], "weight", Halves())
    stem = "0.parametrizations.weight.original"
    assert decayed_names(net) == {f"{stem}0", f"{stem}1"}


def test_a_weight_of_two_layers_is_trained_once():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert decayed_names(net) == {"0.weight"}


def test_the_loop_of_the_docs_trains():
    page = Path(__file__).parents[1] / "docs" / "optimisers.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    net = normed_net()
    before = vector(net.parameters())
    given = {"net": net, "batches": [batch()], "epochs": 3, "mean_train_loss": 1.0, "validation_loss": 1.1}
    scope = given | {"torch": torch, "F": nn.functional}
    exec(code, scope)
    assert not torch.equal(vector(net.parameters()), before)
    assert scope["optimizer"].radius_now == pytest.approx(0.5)
