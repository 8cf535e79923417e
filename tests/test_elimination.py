"""Greedy elimination: its errors are those of least squares, and it finds what is redundant."""

import pytest
import torch
from group_nets import TINY_GROUPS, TINY_SHAPE, cut, embedded, fashion_batches, group, hidden_group, tiny_net
from hypothesis import given
from hypothesis import strategies as st
from small_nets import hooks_of, same_state, state_of
from torch import nn

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.errors import DataError, ModelError
from edgecompress.nets.attention import Attention
from edgecompress.nets.metric import INPUT_DAMPING, damped
from edgecompress.nets.narrowing import narrow_
from edgecompress.search import elimination
from edgecompress.search.compensation import make_up_
from edgecompress.search.elimination import Reading, eliminate
from edgecompress.search.readings import measure_readings


def drawn_reading(width, size, seed):
    generator = torch.Generator().manual_seed(seed)
    rows, weights = (
        torch.randn(40, width * size, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    rows = rows @ torch.randn(width * size, width * size, dtype=torch.float64, generator=generator)
    return Reading(rows.T @ rows / 40, weights.T @ weights)


def true_error(reading, gone, width):
    """Returns the least-squares error after units went, from the formula itself."""
    size = reading.entries(width)
    entries = torch.arange(width * size).reshape(width, size)
    moment = damped(reading.moment, INPUT_DAMPING)
    stays = entries[[i for i in range(width) if i not in gone]].flatten()
    gone = entries[list(gone)].flatten()
    rest = moment[gone[:, None], gone]
    if len(stays):
        rest = rest - moment[gone[:, None], stays] @ torch.linalg.solve(
            moment[stays[:, None], stays], moment[stays[:, None], gone]
        )
    return float((reading.gram[gone[:, None], gone] * rest).sum()) / 2


@given(
    width=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_errors_are_those_of_least_squares_and_every_step_is_the_best(width, sizes, seed):
    readings = [drawn_reading(width, size, seed + i) for i, size in enumerate(sizes)]
    found = eliminate(readings, width)
    order = found.order.tolist()
    assert sorted(order) == list(range(width)) and found.errors[width] == 0
    for count in range(1, width + 1):
        error = float(found.errors[width - count])
        own = sum(true_error(r, order[:count], width) for r in readings)
        assert error == pytest.approx(own, rel=1e-6)
        left = set(range(width)) - set(order[: count - 1])
        others = [sum(true_error(r, [*order[: count - 1], i], width) for r in readings) for i in left]
        assert error <= min(others) * (1 + 1e-6)


def test_rounds_of_several_units_have_exact_errors_and_nearly_the_same_order(monkeypatch):
    reading = drawn_reading(30, 1, 5)
    single = eliminate([reading], 30)
    monkeypatch.setattr(elimination, "MANY_UNITS", 6)
    monkeypatch.setattr(elimination, "SHARE_AT_ONCE", 1 / 6)
    found = eliminate([reading], 30)
    for count in (1, 7, 15, 30):
        wanted = true_error(reading, found.order[:count].tolist(), 30)
        assert float(found.errors[30 - count]) == pytest.approx(wanted, rel=1e-6)
    assert 1 <= float(found.errors[15] / single.errors[15]) < 2


def test_scores_rise_along_the_order_and_add_up_to_the_errors():
    found = eliminate([drawn_reading(20, 1, 0)], 20)
    assert torch.equal(found.scores.argsort(), found.order)
    assert (found.scores[found.order].diff() > 0).all()
    dead = Reading(torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64))
    nothing = eliminate([dead], 4)
    assert torch.equal(nothing.scores.argsort(), nothing.order)


def test_a_unit_others_can_stand_in_for_goes_first_however_large_it_is():
    small, large = torch.randn(2, 200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([small, 10 * large, 10 * large], dim=1)
    found = eliminate([Reading(rows.T @ rows / 200, torch.eye(3, dtype=torch.float64))], 3)
    assert int(found.order[0]) != 0 and int(found.order[1]) == 0
    assert float(found.errors[2]) < 0.02 * float(found.errors[1])


def two_layers(width=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double().eval()


def tiny_batches(count=64, shape=TINY_SHAPE):
    return [(torch.randn(count, *shape, dtype=torch.float64), None)]


def test_readings_of_a_small_network_are_what_the_formulas_say():
    model, x = two_layers(), torch.randn(50, 4, dtype=torch.float64)
    one = hidden_group("0", 6, "0", "2")
    (found,) = measure_readings(model, [one], [(x[:20], None), (x[20:], None)], 0, NO_PROGRESS)["0"]
    inner = model[:2](x).detach()
    torch.testing.assert_close(found.moment, inner.T @ inner / 50)
    weight = model[2].weight.detach()
    p = model(x).softmax(1).detach()
    fisher = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]).mean(0)  # the mean over all labels
    drawn = found.gram.trace() / (weight.T @ fisher @ weight).trace()
    assert 0.5 < float(drawn) < 2


def test_predicted_errors_are_the_divergence_in_nats():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 5)).double().eval()
    x = torch.randn(4000, 8, dtype=torch.float64)
    one = hidden_group("0", 12, "0", "2")
    readings = measure_readings(model, [one], [(x, None)], 0, NO_PROGRESS)
    found = eliminate(readings["0"], 12)
    kept = {"0": sorted(found.order[4:].tolist())}
    before = model(x).log_softmax(1).detach()
    make_up_(model, [one], kept, readings)
    narrow_(model, [one], kept)
    divergence = nn.functional.kl_div(model(x).log_softmax(1), before, reduction="batchmean", log_target=True)
    assert float(divergence.detach()) == pytest.approx(float(found.errors[8]), rel=0.25)


def test_measuring_leaves_the_network_alone():
    model = tiny_net()
    state = state_of(model)
    found = measure_readings(model, TINY_GROUPS, tiny_batches(), 0, NO_PROGRESS)
    assert same_state(model, state) and hooks_of(model) == 0
    assert {name: [len(r.moment) for r in readings] for name, readings in found.items()} == {
        "conv1": [8],
        "conv2": [12],
        "fc1": [16],
    }


def test_without_images_or_readers_there_is_a_clear_error():
    model = two_layers()
    with pytest.raises(DataError, match="images"):
        measure_readings(model, [hidden_group("0", 6, "0", "2")], [], 0, NO_PROGRESS)
    lonely = group("0", "hidden", 6, [cut("0", "outputs")], [cut("0", "outputs")])
    with pytest.raises(ModelError, match="0: no layer reads it"):
        measure_readings(model, [lonely], [(torch.randn(3, 4).double(), None)], 0, NO_PROGRESS)


@pytest.mark.parametrize("name", ["fashion_resnet", "fashion_vit"])
def test_made_up_units_keep_most_of_the_outputs(name):
    model, groups = embedded(name)
    batches, _ = fashion_batches(96, size=48)
    images = batches[0][0]
    with torch.no_grad():
        wanted = model(images)
    readings = measure_readings(model, groups, batches, 0, NO_PROGRESS)
    kept = {
        g.name: sorted(eliminate(readings[g.name], g.width).order[g.width // 4 :].tolist()) for g in groups
    }
    errors = []
    for make_up in (True, False):
        small = embedded(name)[0]
        if make_up:
            make_up_(small, groups, kept, readings)
        narrow_(small, groups, kept)
        with torch.no_grad():
            errors.append(float((small(images) - wanted).norm() / wanted.norm()))
    assert errors[0] < 0.75 * errors[1] and errors[0] < 0.5


def test_a_unit_that_is_the_double_of_another_is_made_up_for_exactly():
    model = tiny_net()
    with torch.no_grad():
        for tensor in (model.conv1.weight, *model.bn1.state_dict(keep_vars=True).values()):
            if tensor.ndim:
                tensor[3] = tensor[5]
    batches = tiny_batches()
    wanted = model(batches[0][0])
    readings = measure_readings(model, TINY_GROUPS, batches, 0, NO_PROGRESS)
    found = eliminate(readings["conv1"], 8)
    assert int(found.order[0]) in (3, 5)
    kept = {"conv1": sorted(found.order[1:].tolist())}
    make_up_(model, TINY_GROUPS, kept, readings)
    narrow_(model, TINY_GROUPS, kept)
    torch.testing.assert_close(model(batches[0][0]), wanted, atol=2e-3, rtol=0)


def test_what_overwrites_the_outputs_of_a_reader_does_not_matter():
    moments = []
    for inplace in (True, False):
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.ReLU(inplace), nn.Linear(6, 5), nn.ReLU(inplace), nn.Linear(5, 3)]
        x = torch.randn(20, 4, dtype=torch.float64)
        model = nn.Sequential(*layers).double().eval()
        one = hidden_group("0", 6, "0", "2")
        moments.append(measure_readings(model, [one], [(x, None)], 0, NO_PROGRESS)["0"][0])
    torch.testing.assert_close(moments[0].gram, moments[1].gram)
    torch.testing.assert_close(moments[0].moment, moments[1].moment)


class OneAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention(nn.Linear(6, 24), nn.Linear(8, 6), heads=2, head_dim=4, scale=1.0)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.attention(x).mean(1))


@pytest.mark.parametrize(("part", "reading"), [(0, 1), (2, 0)], ids=["queries", "values"])
def test_a_dimension_without_queries_or_values_is_found_in_its_reading(part, reading):
    torch.manual_seed(0)
    model = OneAttention().double().eval()
    made, read = cut("attention.qkv", "outputs", repeats=6), cut("attention.proj", "inputs", repeats=2)
    one = group("attention.qkv", "head_dim", 4, [made, read, cut("attention", "head_dim")], [made])
    with torch.no_grad():
        for head in range(2):
            row = part * 8 + head * 4 + 3
            model.attention.qkv.weight[row] = model.attention.qkv.bias[row] = 0
    x = torch.randn(30, 5, 6, dtype=torch.float64)
    found = measure_readings(model, [one], [(x, None)], 0, NO_PROGRESS)["attention.qkv"]
    dead = (found[reading].moment.diagonal().reshape(4, 2) == 0).tolist()  # (dimensions, heads)
    assert dead == [[False, False]] * 3 + [[True, True]]
    assert bool((found[1 - reading].moment.diagonal() > 0).all())
