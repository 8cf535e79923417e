"""Gradient search: its network, its steps, its end within the limit, and going on after a stop."""

import copy
import dataclasses
import math

import pytest
import torch
from gradient_problems import filling, gradient_problem, labelled, unlabelled
from small_nets import INPUT_SHAPE, hooks_of, images, same_state, small_net, state_of

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import ArtefactError, BudgetError, ConfigError, DataError
from edgecompress.methods import lowrank
from edgecompress.nets.chains import filled_block
from edgecompress.nets.modules import find_layers, layer_named, replace_, weight_of
from edgecompress.search import theta_training
from edgecompress.search.contract import Options
from edgecompress.search.mixed_layers import make_supernet
from edgecompress.search.supernet import GradientSettings, search_by_gradient
from edgecompress.search.theta import Space

MODEL = small_net()
PROBLEM = gradient_problem(MODEL)
FILL = filling(PROBLEM)
QUICK = GradientSettings(steps=12, batch_images=8, epochs=100)


def run(*, problem=PROBLEM, settings=QUICK, batches=None, **options):
    return search_by_gradient(MODEL, problem, FILL, batches or unlabelled(), settings, **options)


def one_hot(size, place):
    weights = torch.zeros(size, dtype=torch.float64)
    weights[place] = 1
    return weights


@pytest.mark.parametrize("fold", [True, False])
def test_all_weight_on_dense_layers_is_the_dense_network(fold):
    model, x = copy.deepcopy(MODEL).double(), images(5, dtype=torch.float64)
    net = make_supernet(model, PROBLEM, FILL, INPUT_SHAPE, fold=fold)
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in net.module.modules()) != fold
    outputs = net.run(x, [one_hot(size, 0) for size in Space(PROBLEM).sizes])
    torch.testing.assert_close(outputs, model(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fold", [True, False])
def test_all_weight_on_a_plan_is_the_compressed_network(fold):
    model, x = copy.deepcopy(MODEL).double(), images(5, dtype=torch.float64)
    net = make_supernet(model, PROBLEM, FILL, INPUT_SHAPE, fold=fold)
    places = [1 + len(o.candidates) // 3 for o in PROBLEM.options]
    weights = [one_hot(size, place) for size, place in zip(Space(PROBLEM).sizes, places, strict=True)]
    for options, place in zip(PROBLEM.options, places, strict=True):
        candidate, dense = options.candidates[place - 1], layer_named(model, options.layer.name)
        block = filled_block(candidate.blocks[0].model_copy(), FILL(candidate), dense.bias)
        replace_(model, options.layer.name, block.double())
        for branch, own in zip([block], FILL(candidate), strict=True):
            for layer, kernel in zip(branch, own, strict=True):
                layer.weight.data = kernel.reshape(layer.weight.shape).double()
    torch.testing.assert_close(net.run(x, weights), model(x), rtol=1e-6, atol=1e-6)


class Flattening(torch.nn.Module):
    """A network that asks for maps in their usual order."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8 * 12 * 12, 6)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).view(len(x), -1))


def test_a_network_that_cannot_work_with_channels_last_works_without():
    model = Flattening().requires_grad_(False)
    layers, _ = find_layers(model, ("first", "second"), INPUT_SHAPE)
    options = tuple(Options(one, tuple(lowrank.METHOD.candidates(one))) for one in layers)
    kernels = {one.name: weight_of(layer_named(model, one.name)).double() for one in layers}
    problem = dataclasses.replace(PROBLEM, options=options, kernels=kernels)
    net = make_supernet(model, problem, filling(problem), INPUT_SHAPE)
    assert not any(layer.channels_last for layer in net.layers)
    outputs = net.run(images(3), [one_hot(size, 0) for size in Space(problem).sizes])
    torch.testing.assert_close(outputs, model(images(3)), rtol=1e-4, atol=1e-5)
    assert all(layer.channels_last for layer in make_supernet(MODEL, PROBLEM, FILL, INPUT_SHAPE).layers)


@pytest.mark.parametrize("metric", ["macs", "params", "ms"])
@pytest.mark.parametrize("labels", [True, False])
def test_the_plan_is_within_the_limit_and_made_of_candidates(metric, labels):
    problem = gradient_problem(MODEL, metric=metric, fixed=0.01)
    batches = labelled(MODEL) if labels else unlabelled()
    found = run(problem=problem, batches=batches)
    assert found.cost == pytest.approx(problem.total(found.choices))
    assert found.cost <= problem.limit
    assert found.steps == QUICK.steps
    assert math.isfinite(found.loss)
    assert found.entropy >= 0
    for options in problem.options:
        assert found.choices.get(options.layer.name) in (*options.candidates, None)


def test_the_model_is_left_alone():
    before, hooks = state_of(MODEL), hooks_of(MODEL)
    wanted = [p.requires_grad for p in MODEL.parameters()]
    run()
    assert same_state(MODEL, before)
    assert hooks_of(MODEL) == hooks
    assert [p.requires_grad for p in MODEL.parameters()] == wanted
    assert all(p.grad is None for p in MODEL.parameters())


def test_the_same_seed_gives_the_same_plan_and_another_seed_other_steps():
    first, again, other = run(seed=3), run(seed=3), run(seed=4)
    assert first == again
    assert first.loss != other.loss


@pytest.mark.parametrize("share", [0.5, 0.6, 0.75])
def test_the_search_is_steered_to_the_limit(share):
    settings = GradientSettings(steps=60, batch_images=8, lr=0.03, temperature_start=1.0, noise=0.3)
    problem = gradient_problem(MODEL, share=share)
    found = run(problem=problem, settings=settings)
    assert found.argmax_cost == pytest.approx(problem.limit, rel=0.12)
    assert found.elasticity >= 0


def test_a_limit_the_dense_network_meets_is_no_reason_to_change_it():
    roomy = dataclasses.replace(PROBLEM, limit=2 * PROBLEM.total({}))
    assert run(problem=roomy).choices == {}


def test_a_higher_elasticity_gives_a_cheaper_network():
    roomy = dataclasses.replace(PROBLEM, limit=PROBLEM.total({}))
    costs = [
        run(
            problem=roomy, settings=GradientSettings(steps=60, batch_images=8, lr=0.05, elasticity=w)
        ).argmax_cost
        for w in (0.1, 5.0, 100.0)
    ]
    assert costs[0] > costs[1] > costs[2]


def test_a_limit_out_of_reach_is_told_before_any_step():
    tight = dataclasses.replace(PROBLEM, limit=PROBLEM.fixed_cost)
    with pytest.raises(BudgetError, match="nearest reachable"):
        run(problem=tight, progress=None)


def test_without_images_there_is_no_search():
    with pytest.raises(DataError, match="needs images"):
        search_by_gradient(MODEL, PROBLEM, FILL, [], QUICK)


def test_pruning_makes_the_space_smaller_and_keeps_the_start():
    start = {o.layer.name: o.candidates[0] for o in PROBLEM.options}
    settings = dataclasses.replace(QUICK, gamma=(0.3, 0.9, 0.1), max_families=2, least_candidates=0)
    found = run(settings=settings, start=start)
    assert found.cost <= PROBLEM.limit


# Going on after a stop


class Stopped(Exception):
    pass


@dataclasses.dataclass
class StopAfter:
    """A progress that ends the search after some steps, as a signal would."""

    steps: int

    def track(self, items, description, total=None):
        assert "loss" in str(description)
        for count, item in enumerate(items):
            if count == self.steps:
                raise Stopped
            yield item


@pytest.mark.parametrize("stop", [1, 7])
def test_a_search_that_was_stopped_goes_on_to_the_same_end(stop, tmp_path, monkeypatch):
    monkeypatch.setattr(theta_training, "CHECKPOINT_S", 0.0)
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    expected = run(checkpoint=whole)
    with pytest.raises(Stopped):
        run(checkpoint=parts, progress=StopAfter(stop))
    assert run(checkpoint=parts) == expected
    assert parts.read_bytes() == whole.read_bytes()


def test_a_finished_search_is_not_repeated(tmp_path):
    path = tmp_path / "theta.safetensors"
    expected = run(checkpoint=path)
    assert run(checkpoint=path, progress=StopAfter(0)) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"settings": dataclasses.replace(QUICK, lr=0.02)},
        {"problem": dataclasses.replace(PROBLEM, limit=0.9 * PROBLEM.limit)},
        {"batches": unlabelled(16)},
    ],
    ids=["seed", "settings", "limit", "images"],
)
def test_a_checkpoint_of_another_search_is_refused(change, tmp_path):
    path = tmp_path / "theta.safetensors"
    run(checkpoint=path)
    with pytest.raises(ArtefactError, match="of another search"):
        run(checkpoint=path, **change)


@pytest.mark.parametrize("content", [b"", b"no such thing", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_checkpoint_is_refused(content, tmp_path):
    path = tmp_path / "theta.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="not a checkpoint"):
        run(checkpoint=path)


# Settings


def test_the_temperature_falls_as_published_whatever_the_number_of_steps():
    for steps in (100, 1000):
        settings = GradientSettings(steps=steps)
        assert settings.temperature(0) == 5
        assert settings.temperature(steps // 2) == pytest.approx(5 * 0.965**50)
        assert settings.temperature(steps) == pytest.approx(5 * 0.965**100)


def test_beta_is_an_elasticity_of_the_dense_macs():
    space = Space(gradient_problem(MODEL, metric="ms"))
    macs = Space(gradient_problem(MODEL)).dense_cost - 1000
    found = theta_training.fixed_elasticity(space, GradientSettings(beta=48.0))
    assert found == pytest.approx(48 / math.log(macs))
    assert theta_training.fixed_elasticity(space, GradientSettings(elasticity=2.0)) == 2
    assert theta_training.fixed_elasticity(space, GradientSettings()) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"elasticity": 1.0, "beta": 1.0}, "give one"), ({"steps": 0}, "steps 0"), ({"lr": -1.0}, "lr -1.0")],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GradientSettings(**options)


def test_steps_are_those_of_torchs_adam_with_coupled_decay():
    settings = GradientSettings(lr=0.03, weight_decay=5e-2)
    torch.manual_seed(0)
    start = torch.randn(9, dtype=torch.float64)
    standing = theta_training.fresh_adam(start.clone())
    parameter = torch.nn.Parameter(start.clone())
    adam = torch.optim.Adam([parameter], lr=0.03, weight_decay=5e-2)
    for step in range(20):
        gradient = torch.randn(9, dtype=torch.float64)
        standing.step = step
        theta_training.adam_(standing, gradient, settings)
        parameter.grad = gradient
        adam.step()
    torch.testing.assert_close(standing.scores, parameter.detach(), rtol=1e-9, atol=1e-9)


def test_nothing_is_shown_by_a_silent_progress():
    assert run(progress=NO_PROGRESS) == run()
