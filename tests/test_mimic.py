"""Laws of feature mimicking: what is compared, and what a loss adds up to."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small_nets import hooks_of, images, small_net
from torch import nn

from edgecompress.errors import ConfigError, DataError
from edgecompress.train.contract import Batch
from edgecompress.train.mimic import FEW_SAMPLE, Mix, Place, find_places, mimicking, outputs_of

LAYERS = ("narrow", "wide", "biased", "hidden")


@pytest.fixture
def dense():
    return small_net().requires_grad_(False)


@pytest.fixture
def student(dense):
    network = copy.deepcopy(dense).requires_grad_(True)
    with torch.no_grad():
        for name in LAYERS:
            network.get_submodule(name).weight.mul_(0.9)
    return network


def batch_of(count=6, *, labels=True, seed=0):
    told = torch.arange(count) % 6 if labels else None
    return Batch(images(count, seed=seed), told, count, 0)


def features_apart(student, dense, batch):
    with torch.no_grad(), outputs_of(student, LAYERS) as ours, outputs_of(dense, LAYERS) as theirs:
        student(batch.images), dense(batch.images)
    return [float((ours[name] - theirs[name]).square().mean()) for name in LAYERS]


def test_equal_networks_have_nothing_to_learn_and_keep_no_hooks(dense):
    places = find_places(dense, dense, LAYERS, [images(8)])
    loss = mimicking(dense, places, Mix(features=1.0, answers=1.0))(copy.deepcopy(dense), batch_of())
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert hooks_of(dense) == 0


def test_the_loss_is_the_sum_of_squared_errors_of_all_layers(dense, student):
    batch = batch_of(5)
    loss = mimicking(dense, [Place(name) for name in LAYERS], Mix(features=1.0))(student, batch)
    assert loss.item() / 5 == pytest.approx(sum(features_apart(student, dense, batch)), rel=1e-5)


def test_relative_errors_are_shares_of_the_variance_averaged_over_layers(dense, student):
    batch = batch_of(8)
    places = find_places(student, dense, LAYERS, [batch.images])
    loss = mimicking(dense, places, Mix(features=1.0, relative=True))(student, batch)
    with torch.no_grad(), outputs_of(dense, LAYERS) as outputs:
        dense(batch.images)
    variances = [
        float(
            outputs[name]
            .movedim(1 if outputs[name].ndim == 4 else -1, 0)
            .flatten(1)
            .var(1, correction=0)
            .mean()
        )
        for name in LAYERS
    ]
    parts = [a / v for a, v in zip(features_apart(student, dense, batch), variances, strict=True)]
    assert loss.item() / 8 == pytest.approx(sum(parts) / len(parts), rel=1e-4)


def test_few_samples_have_the_loss_of_the_paper(dense, student):
    batch = batch_of(6)
    loss = mimicking(dense, [Place(name) for name in LAYERS], FEW_SAMPLE)(student, batch)
    ours, theirs = student(batch.images), dense(batch.images)
    soft = F.kl_div((ours / 6).log_softmax(1), (theirs / 6).softmax(1), reduction="batchmean")
    wanted = 0.95 * 36 * soft + 0.05 * F.cross_entropy(ours, batch.labels)
    wanted = wanted.item() + sum(features_apart(student, dense, batch))
    assert loss.item() / 6 == pytest.approx(wanted, rel=1e-4)


def test_losses_of_two_halves_add_up_to_that_of_the_whole(dense, student):
    objective = mimicking(dense, find_places(student, dense, LAYERS, [images(8)]), FEW_SAMPLE)
    whole = batch_of(8)
    halves = [Batch(whole.images[k::2], whole.labels[k::2], 8, 0) for k in range(2)]
    total = sum(objective(student, half).item() for half in halves)
    assert total == pytest.approx(objective(student, whole).item(), rel=1e-4)


def test_gradients_reach_the_network_and_not_the_dense_one(dense, student):
    dense.requires_grad_(True)
    mimicking(dense, [Place("wide")], Mix(features=1.0))(student, batch_of()).backward()
    assert student.wide.weight.grad.abs().sum() > 0
    assert student.head.weight.grad is None  # behind the last place
    assert all(parameter.grad is None for parameter in dense.parameters())


def test_of_a_narrowed_layer_the_rows_that_stayed_are_compared(dense, student):
    kept = [0, 2, 3, 7]
    student.narrow = nn.Conv2d(8, 4, 3, padding=1, bias=False)
    student.norm1, student.wide = nn.BatchNorm2d(4), nn.Conv2d(4, 16, 3, stride=2, padding=1, bias=False)
    with torch.no_grad():
        student.narrow.weight.copy_(dense.narrow.weight[kept])
        student.stem.load_state_dict(dense.stem.state_dict())
    assert find_places(student.eval(), dense, ["narrow"], [images(4)]) == ()
    places = find_places(student, dense, ["narrow", "wide"], [images(4)], {"narrow": kept})
    assert [(place.name, place.rows) for place in places] == [("narrow", tuple(kept)), ("wide", None)]
    loss = mimicking(dense, places[:1], Mix(features=1.0))(student, batch_of())
    assert loss.item() == pytest.approx(0, abs=1e-9)
    wrong = [Place("narrow", (0, 1, 3, 7))]
    assert mimicking(dense, wrong, Mix(features=1.0))(student, batch_of()).item() > 1e-3


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.same, self.once, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.once(self.same(self.same(x.mean((2, 3)))))


def test_modules_that_run_twice_or_never_are_no_places():
    one, other = Twice(), Twice()
    found = find_places(one, other, ["same", "once", "never", "unknown"], [torch.randn(2, 4, 3, 3)])
    assert [place.name for place in found] == ["once"]


def test_without_places_answers_are_left(dense, student):
    loss = mimicking(dense, [], Mix(features=1.0, answers=1.0, relative=True))(student, batch_of())
    alone = mimicking(dense, [], Mix(answers=1.0))(student, batch_of())
    assert loss.item() == alone.item() > 0


def test_labels_that_are_missing_are_told(dense, student):
    with pytest.raises(DataError, match="images have none"):
        mimicking(dense, [], FEW_SAMPLE)(student, batch_of(labels=False))


@pytest.mark.parametrize("wrong", [{}, {"features": -1.0}, {"answers": 1.0, "temperature": 0.0}])
def test_mixtures_of_nothing_are_refused(wrong):
    with pytest.raises(ConfigError):
        Mix(**wrong)
