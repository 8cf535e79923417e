"""Gates: at one they change nothing, folded in they compute the same, at zero units can be taken away."""

import copy

import pytest
import torch
import width_nets
from group_nets import TINY_GROUPS, TINY_SHAPE, cut, embedded, group, hidden_group, tiny_net
from small_nets import hooks_of, same_state, state_of
from torch import nn

from edgecompress.errors import ModelError
from edgecompress.nets.gates import fold_, gate_gradients, gated
from edgecompress.nets.narrowing import narrow_
from edgecompress.nets.width_groups import find_width_groups


def images(count=3, shape=TINY_SHAPE, dtype=torch.float64):
    return torch.randn(count, *shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def tiny():
    return tiny_net(), TINY_GROUPS, images()


def network(name):
    model, groups = embedded(name)
    return model.double(), groups, images(shape=(1, 28, 28))


def of_torchvision(name):
    model = width_nets.network(f"torchvision:{name}", classes=10)
    groups = find_width_groups(model, (3, 32, 32)).groups
    return model.double(), groups, images(2, shape=(3, 32, 32))


CASES = {
    "tiny": tiny,
    "resnet18": lambda: of_torchvision("resnet18"),
    "mobilenet_v2": lambda: of_torchvision("mobilenet_v2"),
    "resnet": lambda: network("fashion_resnet"),
    "vit": lambda: network("fashion_vit"),
}
EVERY_NET = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def drawn(groups, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {g.name: torch.randn(g.width, dtype=torch.float64, generator=generator) for g in groups}


@EVERY_NET
def test_gates_of_one_change_nothing_and_leave_nothing_behind(case):
    model, groups, x = case()
    before, hooks, state = model(x), hooks_of(model), state_of(model)
    with gated(model, groups) as gates:
        inside = model(x)
        assert {name: len(alpha) for name, alpha in gates.alphas.items()} == {g.name: g.width for g in groups}
    assert torch.equal(inside, before) and torch.equal(model(x), before)
    assert hooks_of(model) == hooks and same_state(model, state)


@EVERY_NET
def test_folded_gates_compute_the_same(case):
    model, groups, x = case()
    alphas, before = drawn(groups), model(x)
    with gated(model, groups, alphas):
        wanted = model(x)
    fold_(model, groups, alphas)
    torch.testing.assert_close(model(x), wanted, rtol=1e-9, atol=1e-9)
    assert bool(((wanted - before).abs() > 0.01).any())


@EVERY_NET
def test_units_with_gates_of_zero_can_be_taken_away(case):
    model, groups, x = case()
    alphas = {name: alpha * (alpha > -0.3) for name, alpha in drawn(groups).items()}
    with gated(model, groups, alphas):
        wanted = model(x)
    fold_(model, groups, alphas)
    small = copy.deepcopy(model)
    narrow_(small, groups, {name: alpha.nonzero().flatten().tolist() for name, alpha in alphas.items()})
    assert sum(p.numel() for p in small.parameters()) < 0.8 * sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(small(x), wanted, rtol=1e-9, atol=1e-9)


@EVERY_NET
def test_gradients_of_images_are_those_of_finite_differences(case):
    model, groups, x = case()
    found = gate_gradients(model, groups, x, lambda y: y.square().sum())
    size = 1e-4
    for one in groups[-2:]:
        values = []
        for sign in (1, -1):
            alphas = {g.name: torch.ones(g.width, dtype=torch.float64) for g in groups}
            alphas[one.name][1] += sign * size
            with gated(model, groups, alphas), torch.no_grad():
                values.append(model(x).square().sum(1))
        difference = (values[0] - values[1]) / (2 * size)
        torch.testing.assert_close(found[one.name][:, 1], difference, rtol=1e-4, atol=1e-6)


def test_repeats_runs_and_offsets_are_where_the_cut_says():
    model = nn.Sequential(nn.Linear(3, 14, bias=False)).double()
    one = group("0", "hidden", 2, [], [cut("0", "outputs", repeats=2, run=3, offset=1)])
    with gated(model, (one,), {"0": torch.tensor([2.0, 5.0], dtype=torch.float64)}):
        after = model(torch.ones(1, 3, dtype=torch.float64))
    before = model(torch.ones(1, 3, dtype=torch.float64))
    expected = [1, 2, 2, 2, 5, 5, 5, 2, 2, 2, 5, 5, 5, 1]
    torch.testing.assert_close((after / before).flatten(), torch.tensor(expected, dtype=torch.float64))


def test_groups_side_by_side_at_one_module_have_gates_of_their_own():
    model = nn.Sequential(nn.Conv2d(1, 5, 1, bias=False)).double()
    parts = [
        group(name, "channels", width, [], [cut("0", "outputs", offset=offset)])
        for name, width, offset in (("a", 2, 0), ("b", 3, 2))
    ]
    alphas = {name: torch.tensor(a, dtype=torch.float64) for name, a in (("a", [2, 3]), ("b", [5, 7, 9]))}
    x = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    with gated(model, parts, alphas):
        ratio = model(x)[0, :, 0, 0]
    torch.testing.assert_close(ratio / model(x)[0, :, 0, 0], torch.tensor([2.0, 3, 5, 7, 9]).double())


def test_linear_layers_have_their_channels_last_in_maps_too():
    model = nn.Sequential(nn.Linear(4, 4)).double()
    x = torch.randn(2, 4, 4, 4, dtype=torch.float64)
    alpha = torch.tensor([1.0, 0, 1, 1], dtype=torch.float64)
    with gated(model, (group("0", "hidden", 4, [], [cut("0", "outputs")]),), {"0": alpha}):
        found = model(x)
    assert not found[..., 1].any() and found[:, 1].any()


def test_windows_of_one_image_share_its_gates():
    model = nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1), nn.Linear(3, 2), nn.Unflatten(0, (-1, 2))
    )
    alphas = torch.tensor([[1.0, 1], [0, 0], [1, 1]])
    with gated(model, (group("2", "hidden", 2, [], [cut("2", "outputs")]),), {"2": alphas}):
        found = model(torch.randn(3, 6))
    assert found[[0, 2]].all() and not found[1].any()


def test_two_networks_can_share_gates():
    first, second = tiny_net(0), tiny_net(1)
    with gated(first, TINY_GROUPS) as gates, gated(second, TINY_GROUPS, gates.alphas) as same:
        assert all(same.alphas[name] is alpha for name, alpha in gates.alphas.items())
        (first(images()).sum() + second(images()).sum()).backward()
        both = gates.alphas["fc1"].grad.clone()
        gates.alphas["fc1"].grad = None
        first(images()).sum().backward()
    assert not torch.allclose(both, gates.alphas["fc1"].grad)


class Bypassing(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc2(nn.functional.linear(x, self.fc1.weight, self.fc1.bias).relu())


def test_a_gate_that_never_fires_is_an_error_with_its_name():
    model = Bypassing()
    with (
        gated(model, (hidden_group("fc1", 4, "fc1", "fc2"),)),
        pytest.raises(ModelError, match="fc1: is never called"),
    ):
        model(torch.zeros(1, 3))
    assert hooks_of(model) == 0 and model(torch.zeros(1, 3)).shape == (1, 2)


@pytest.mark.parametrize(
    ("layer", "width", "message"),
    [
        (nn.LayerNorm(4), 4, "0: LayerNorm cannot carry gates"),
        (nn.Linear(4, 4), 5, "0: has 4 outputs, too few"),
    ],
)
def test_modules_that_cannot_carry_gates_are_refused(layer, width, message):
    one = group("0", "hidden", width, [], [cut("0", "outputs")])
    with pytest.raises(ModelError, match=message), gated(nn.Sequential(layer), (one,)):
        pass


def test_gates_of_another_width_and_norms_without_scale_are_refused():
    one = group("0", "channels", 4, [], [cut("0", "channels")])
    model = nn.Sequential(nn.BatchNorm2d(4, affine=False))
    with (
        pytest.raises(ModelError, match="0: 3 gates for 4 units"),
        gated(model, (one,), {"0": torch.ones(3)}),
    ):
        pass
    with pytest.raises(ModelError, match="0: has no weights"):
        fold_(model, (one,), {"0": torch.ones(4)})
