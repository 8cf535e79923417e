"""Channels that are zero at their gates can be taken away, and nothing else is offered."""

import functools

import pytest
import torch
import torch.nn.functional as F
from small_nets import INPUT_SHAPE, same_state, small_net, state_of
from torch import nn
from width_nets import network, randomised, removal_error, some_units

from edgecompress.core.types import Cut, Plan
from edgecompress.errors import ModelError
from edgecompress.nets import width_trial
from edgecompress.nets.artefact import load, save_artefact
from edgecompress.nets.modules import Sum
from edgecompress.nets.narrowing import narrow_
from edgecompress.nets.profile import profile
from edgecompress.nets.sources import load_model
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable
from edgecompress.nets.width_groups import find_width_groups
from edgecompress.nets.zoo.cifar_resnets import PreActResNet

IMAGE = (3, 32, 32)
EXACT = 1e-5


def small_densenet():
    ensure_torchvision_importable()
    from torchvision.models import DenseNet

    return randomised(DenseNet(8, (2, 3), num_init_features=16, num_classes=10))


def small_resnext():
    ensure_torchvision_importable()
    from torchvision.models.resnet import Bottleneck, ResNet

    return randomised(ResNet(Bottleneck, [1, 2, 1, 1], num_classes=10, groups=8, width_per_group=8))


def small_efficientnet():
    ensure_torchvision_importable()
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    stages = [MBConvConfig(1, 3, 1, 16, 16, 1, 1.0, 1.0), MBConvConfig(4, 5, 2, 16, 24, 2, 1.0, 1.0)]
    return randomised(EfficientNet(stages, dropout=0.2, last_channel=64, num_classes=10))


NETS = {
    "resnet18": functools.partial(network, "torchvision:resnet18", classes=10),
    "resnet50": functools.partial(network, "torchvision:resnet50", classes=10),
    "mobilenet_v2": functools.partial(network, "torchvision:mobilenet_v2", classes=10),
    "mobilenet_v3_small": functools.partial(network, "torchvision:mobilenet_v3_small", classes=10),
    "efficientnet": small_efficientnet,
    "resnext": small_resnext,
    "shufflenet": functools.partial(network, "torchvision:shufflenet_v2_x0_5", classes=10),
    "densenet": small_densenet,
    "regnet": functools.partial(network, "torchvision:regnet_y_400mf", classes=10),
    "squeezenet": functools.partial(network, "torchvision:squeezenet1_1", classes=10),
    "cifar_resnet": functools.partial(network, "zoo:resnet20"),
    "preresnet": lambda: randomised(PreActResNet(2, classes=10)),
    "vgg": functools.partial(network, "zoo:vgg16"),
}


@functools.cache
def case(name):
    """Returns a network and its groups; tests leave both alone."""
    model = NETS[name]()
    return model, find_width_groups(model, IMAGE)


def by_name(found):
    return {group.name: group for group in found.groups}


def gates_of(group):
    return [gate.module for gate in group.gates]


@pytest.mark.parametrize("name", NETS)
def test_units_that_are_zero_at_their_gates_can_be_taken_away(name):
    model, found = case(name)
    error, effect = removal_error(model, found.groups, some_units(found.groups), IMAGE)
    assert error < EXACT
    assert effect > 0.05


@pytest.mark.parametrize("name", NETS)
def test_every_layer_is_in_a_group_or_refused_with_a_reason(name):
    model, found = case(name)
    makers = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d) and getattr(module, "groups", 1) == 1
    }
    offered = {cut.module for group in found.groups for cut in group.cuts if cut.axis == "outputs"}
    refused = dict(found.refused)
    assert makers <= offered | refused.keys()
    assert len({group.name for group in found.groups}) == len(found.groups)
    assert len(refused) == len(found.refused)
    assert all(reason and "\n" not in reason for reason in refused.values())


def test_the_zoos_own_networks_can_be_narrowed():
    for source, groups in (("zoo:fashion_resnet", 8), ("zoo:fashion_vit", 5)):
        model = network(source)
        found = find_width_groups(model, (1, 28, 28))
        assert len(found.groups) == groups
        assert removal_error(model, found.groups, some_units(found.groups), (1, 28, 28))[0] < EXACT


def test_efficientnet_lite_can_be_narrowed():
    pytest.importorskip("efficientnet_lite_pytorch")
    model = network("zoo:efficientnet_lite0", classes=10)
    found = find_width_groups(model, IMAGE)
    assert removal_error(model, found.groups, some_units(found.groups), IMAGE)[0] < EXACT
    assert [name for name, _ in found.refused] == ["_fc"]


# where gates are


def test_the_gate_of_an_inverted_residual_is_after_the_depthwise_norm():
    found = by_name(case("mobilenet_v2")[1])
    hidden = found["features.2.conv.0.0"]
    assert gates_of(hidden) == ["features.2.conv.1.1"]
    assert [(cut.module, cut.axis) for cut in hidden.cuts] == [
        ("features.2.conv.0.0", "outputs"),
        ("features.2.conv.0.1", "channels"),
        ("features.2.conv.1.0", "channels"),
        ("features.2.conv.1.1", "channels"),
        ("features.2.conv.2", "inputs"),
    ]
    assert gates_of(found["features.0.0"]) == ["features.1.conv.0.1"]  # the stem feeds the first depthwise


def test_a_gate_at_the_expanding_norm_would_be_wrong():
    model, found = case("mobilenet_v2")
    wrong = []
    for group in found.groups:
        norms = [cut for cut in group.cuts if cut.module.endswith("conv.0.1")]
        wrong.append(group.model_copy(update={"gates": tuple(norms)}) if norms else group)
    kept = some_units(found.groups)
    assert removal_error(model, wrong, kept, IMAGE)[0] > 1e-2


def test_all_writers_of_a_sum_are_gates():
    found = by_name(case("resnet18")[1])
    assert gates_of(found["layer2.0.conv2"]) == ["layer2.0.bn2", "layer2.0.downsample.1", "layer2.1.bn2"]
    assert gates_of(found["layer2.0.conv1"]) == ["layer2.0.bn1"]


def test_a_forgotten_writer_would_be_wrong():
    model, found = case("resnet18")
    group = by_name(found)["layer2.0.conv2"]
    wrong = group.model_copy(update={"gates": group.gates[:-1]})
    assert removal_error(model, [group], some_units([group]), IMAGE)[0] < EXACT
    assert removal_error(model, [wrong], some_units([group]), IMAGE)[0] > 1e-2


def test_gates_of_networks_with_norms_first_are_at_the_readers():
    found = by_name(case("preresnet")[1])
    last = found["layer3.0.conv3"]
    assert gates_of(last) == ["layer3.1.bn1", "bn"]
    assert {"layer2.0.conv3", "layer2.0.downsample", "layer2.1.conv3"} < set(
        gates_of(found["layer2.0.conv3"])
    )


def test_squeeze_and_excite_goes_with_its_channels_and_has_units_of_its_own():
    found = by_name(case("mobilenet_v3_small")[1])
    inner = found["features.4.block.0.0"]
    assert gates_of(inner) == ["features.4.block.1.1"]
    assert {"features.4.block.2.fc1", "features.4.block.2.fc2"} < {cut.module for cut in inner.cuts}
    assert gates_of(found["features.4.block.2.fc1"]) == ["features.4.block.2.fc1"]


# where units lie


def test_a_flattened_map_has_runs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6 * 36, 4)

        def forward(self, x):
            return self.head(F.relu(self.conv(x)).flatten(1))

    model = randomised(Net())
    found = find_width_groups(model, (3, 8, 8))
    (group,) = found.groups
    assert group.cuts[-1] == Cut(module="head", axis="inputs", run=36)
    assert removal_error(model, found.groups, {"conv": [1, 4, 5]}, (3, 8, 8))[0] < EXACT


def test_a_map_beside_itself_repeats():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 5, 1), nn.Conv2d(10, 4, 1)

        def forward(self, x):
            x = self.conv(x)
            return self.head(torch.cat([x.relu(), x.tanh()], 1)).mean((2, 3))

    model = randomised(Net())
    (group,) = find_width_groups(model, (3, 8, 8)).groups
    assert group.cuts[-1] == Cut(module="head", axis="inputs", repeats=2)
    assert removal_error(model, [group], {"conv": [1, 4]}, (3, 8, 8))[0] < EXACT


def test_layers_side_by_side_have_offsets():
    model, found = case("densenet")
    new = by_name(found)["features.denseblock1.denselayer2.conv2"]
    reads = [cut for cut in new.cuts if cut.module == "features.transition1.conv"]
    assert reads == [Cut(module="features.transition1.conv", axis="inputs", offset=24)]
    assert gates_of(new) == ["features.transition1.norm"]
    assert removal_error(model, [new], some_units([new]), IMAGE)[0] < EXACT


def test_padded_shortcuts_leave_the_channels_that_were_not_padded():
    model, found = case("cifar_resnet")
    stage = by_name(found)["conv1"]
    offsets = {cut.module: cut.offset for cut in stage.cuts if cut.axis == "outputs"}
    assert offsets["layer1.2.conv2"] == 0
    assert offsets["layer2.0.conv2"] == 8
    assert offsets["layer3.2.conv2"] == 24
    assert "16 of 32 outputs" in dict(found.refused)["layer2.1.conv2"]
    assert removal_error(model, [stage], some_units([stage]), IMAGE)[0] < EXACT


def test_shuffled_channels_are_refused_and_those_inside_a_branch_are_not():
    _, found = case("shufflenet")
    assert dict(found.refused)["stage2.1.branch2.5"] == "goes through view in stage2.1"
    assert "stage2.1.branch2.0" in by_name(found)


def test_grouped_convolutions_are_refused_with_all_that_meets_them():
    _, found = case("resnext")
    assert dict(found.refused)["layer1.0.conv2"] == "is a convolution of 8 groups"
    assert "layer1.0.conv2, which is a convolution of 8 groups" in dict(found.refused)["layer1.0.conv1"]


def test_parts_of_a_layer_at_fixed_places_are_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.left = nn.Conv2d(3, 10, 1), nn.Conv2d(5, 4, 1)
            self.right, self.head = nn.Conv2d(5, 4, 1), nn.Linear(4, 3)

        def forward(self, x):
            left, right = self.both(x).chunk(2, 1)
            return self.head((self.left(left.relu()) + self.right(right.tanh())).mean((2, 3)))

    found = find_width_groups(randomised(Net()), (3, 6, 6))
    assert [group.name for group in found.groups] == ["left"]
    assert dict(found.refused)["both"] == "goes through chunk"


def test_parts_of_a_layer_with_unlike_readers_are_groups_of_their_own():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high, self.side = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 10, 1), nn.Conv2d(3, 6, 1)
            self.both, self.head = nn.BatchNorm2d(10), nn.Conv2d(10, 3, 1)

        def forward(self, x):
            first = self.both(self.high(x))
            return self.head((first + torch.cat([self.low(x), self.side(x)], 1)).relu()).mean((2, 3))

    model = randomised(Net())
    found = find_width_groups(model, (3, 6, 6))
    assert [(group.name, group.width) for group in found.groups] == [("high", 4), ("high[4:10]", 6)]
    assert [cut.offset for cut in found.groups[1].cuts] == [4, 4, 0, 4]
    kept = {"high": [0, 3], "high[4:10]": [1, 2, 5]}
    assert removal_error(model, found.groups, kept, (3, 6, 6))[0] < EXACT


# what is counted


def test_bottlenecks_cost_what_the_formula_says():
    ensure_torchvision_importable()
    from torchvision.models.resnet import Bottleneck

    width, kept, side = 16, 5, 8
    model = randomised(nn.Sequential(nn.Conv2d(3, 64, 1, bias=False), Bottleneck(64, width)))
    found = find_width_groups(model, (3, side, side), residual=False)
    assert [group.name for group in found.groups] == ["1.conv1", "1.conv2"]
    narrow_(model, found.groups, {group.name: range(kept) for group in found.groups})
    macs = 9 * kept * kept + 2 * 4 * width * kept
    assert sum(p.numel() for p in model[1].parameters()) == macs + 2 * (2 * kept + 4 * width)
    assert sum(row.macs for row in profile(model, (3, side, side))) == (macs + 3 * 64) * side * side
    assert (model[1].conv2.in_channels, model[1].conv2.out_channels, model[1].bn2.num_features) == (5, 5, 5)


def test_inverted_residuals_cost_what_the_formula_says():
    ensure_torchvision_importable()
    from torchvision.models.mobilenetv2 import InvertedResidual

    kept, side = 7, 8
    model = randomised(nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), InvertedResidual(8, 8, 1, 4)))
    (group,) = find_width_groups(model, (3, side, side), residual=False).groups
    narrow_(model, [group], {group.name: range(1, kept + 1)})
    macs = 8 * kept + 9 * kept + kept * 8
    assert sum(p.numel() for p in model[1].parameters()) == macs + 2 * (kept + kept + 8)
    assert sum(row.macs for row in profile(model, (3, side, side))) == (macs + 24) * side * side
    assert model[1].conv[1][0].groups == kept


def test_stages_can_be_left_out():
    model, _ = case("cifar_resnet")
    found = find_width_groups(model, IMAGE, residual=False)
    assert [group.name for group in found.groups] == [
        f"layer{s}.{b}.conv1" for s in (1, 2, 3) for b in range(3)
    ]
    assert dict(found.refused)["conv1"] == "is joined to other layers by a sum"


def test_branches_of_a_low_rank_block_are_no_stage():
    chains = [nn.Sequential(nn.Conv2d(8, 3, 1, bias=False), nn.Conv2d(3, 12, 3)) for _ in range(2)]
    chains[0][1].padding = chains[1][1].padding = (1, 1)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.ReLU(), Sum(chains), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 1)
    )
    found = find_width_groups(randomised(model), INPUT_SHAPE, residual=False)
    assert [group.name for group in found.groups] == [
        "0",
        "2.branches.0.0",
        "2.branches.0.1",
        "2.branches.1.0",
    ]
    assert gates_of(by_name(found)["2.branches.0.1"]) == ["3"]
    assert removal_error(model, found.groups, some_units(found.groups), INPUT_SHAPE)[0] < EXACT


def test_groups_are_found_without_changing_the_network():
    model = small_net().train()
    before = state_of(model)
    found = find_width_groups(model, INPUT_SHAPE)
    assert same_state(model, before)
    assert all(module.training for module in model.modules())
    assert [(group.name, group.kind) for group in found.groups] == [
        ("stem.0", "channels"),
        ("narrow", "channels"),
        ("wide", "channels"),
        ("biased", "channels"),
        ("hidden", "hidden"),
    ]


# what must be refused


class Between(nn.Module):
    """Two convolutions with something between them, and a head."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.Linear(6, 4)
        self.mask = nn.Conv2d(6, 1, 1)
        self.between = between
        self.slope = nn.Parameter(torch.rand(6, 1, 1))

    def forward(self, x):
        return self.head(self.second(self.between(self, self.first(x))).mean((2, 3)))


REFUSED_BETWEEN = {
    "sigmoid": lambda _, x: x.sigmoid(),
    "a number added": lambda _, x: x + 1,
    "a limit above zero": lambda _, x: x.clamp(min=0.1),
    "a border of ones": lambda _, x: F.pad(x, (1, 1, 1, 1), value=1.0),
    "a sum with what is not zero": lambda _, x: x + x.sigmoid(),
    "one channel added to all": lambda net, x: x + net.mask(x),
    "softmax over channels": lambda _, x: x.softmax(1),
    "a norm over channels": lambda _, x: F.group_norm(x, 2),
    "weights per channel": lambda net, x: x * net.slope,
    "channels the other way round": lambda _, x: x.flip(1),
    "a mean over channels": lambda _, x: x - x.mean(1, keepdim=True),
    "a width written down": lambda _, x: x.reshape(-1, 6, 6, 6),
    "a width that is read": lambda _, x: x * x.shape[1] ** -0.5,
    "what follows in place": lambda _, x: (x.view(x.shape), x.sigmoid_())[0],
    "two slices": lambda _, x: torch.cat([x[:, :2], x[:, 2:]], 1),
    "a shuffle and back": lambda _, x: x.view(1, 2, 3, 6, 6).mul(2).flatten(1, 2),
    "division by channels": lambda _, x: x / (x.abs() + 1),
}


ONLY_A_TRIAL_SHOWS = ("a width written down", "a width that is read", "what follows in place")


@pytest.mark.parametrize("name", REFUSED_BETWEEN)
def test_what_cannot_be_taken_away_exactly_is_refused(name):
    found = find_width_groups(randomised(Between(REFUSED_BETWEEN[name])), (3, 8, 8))
    assert [group.name for group in found.groups] == ["second"]
    refused = dict(found.refused)
    assert refused.keys() - {"mask"} == {"first", "head"}
    assert refused["first"].startswith("the network ") == (name in ONLY_A_TRIAL_SHOWS)


TAKEN_BETWEEN = {
    "relu6": lambda _, x: F.relu6(x),
    "leaky relu in place": lambda _, x: F.leaky_relu_(x),
    "hardswish": lambda _, x: F.hardswish(x),
    "its own sigmoid": lambda _, x: x * x.sigmoid(),
    "a number times": lambda _, x: 2 * x / 3,
    "pooling": lambda _, x: F.avg_pool2d(F.max_pool2d(x, 3, 1, 1), 2, 1),
    "a border of zeros": lambda _, x: F.pad(x, (1, 1, 1, 1)),
    "a mirrored border": lambda _, x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "upsampling": lambda _, x: F.interpolate(x, scale_factor=2.0),
    "channels last and back": lambda _, x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "one channel times all": lambda net, x: x * net.mask(x),
    "a mask of one channel": lambda _, x: x * x.new_ones(1, 1, 6, 6),
    "a slice of all": lambda _, x: x[:, :],
    "zeros added": lambda _, x: x + torch.zeros_like(x),
    "nothing added": lambda _, x: sum([x, x.relu()]),
}


@pytest.mark.parametrize("between", TAKEN_BETWEEN.values(), ids=TAKEN_BETWEEN)
def test_what_keeps_zeros_is_passed_through(between):
    model = randomised(Between(between))
    found = find_width_groups(model, (3, 8, 8))
    assert sum(group.width for group in found.groups if group.name.startswith("first")) == 6
    assert removal_error(model, found.groups, some_units(found.groups), (3, 8, 8))[0] < EXACT


def middle(**parts):
    """Returns a network of which the second of three convolutions is in question."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = (nn.Conv2d(6, 6, 1) for _ in range(3))
            self.stem, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)
            parts.get("change", lambda net: None)(self)

        def forward(self, x):
            x = self.first(self.stem(x).relu()).relu()
            x = parts.get("call", lambda net, x: net.second(x))(self, x).relu()
            return self.head(self.third(x).relu()).mean((2, 3))

    return randomised(Net())


class Doubled(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) + 1


class Standardised(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 6, 1, 1))

    def forward(self, x):
        return F.conv2d(x, self.kernel)


def set_second(make):
    return lambda net: setattr(net, "second", make())


QUESTIONABLE = {
    "shared weights": (
        {"change": lambda net: setattr(net.second, "weight", net.third.weight)},
        "shares its weights",
    ),
    "called twice": ({"call": lambda net, x: net.second(net.second(x))}, "called more than once"),
    "read from outside": ({"call": lambda net, x: F.conv2d(x, net.second.weight)}, "not called"),
    "also read outside": (
        {"call": lambda net, x: net.second(x) * net.second.weight.mean()},
        "read from outside",
    ),
    "more than a layer": ({"change": set_second(lambda: Doubled(6, 6, 1))}, "computes more"),
    "computed weights": ({"change": set_second(lambda: Standardised(6, 6, 1))}, "computes its weights"),
    "weights of its own": ({"change": set_second(Functional)}, "is a Functional"),
    "groups": ({"change": set_second(lambda: nn.Conv2d(6, 6, 1, groups=2))}, "of 2 groups"),
    "two per channel": (
        {"change": set_second(lambda: nn.Sequential(nn.Conv2d(6, 12, 1, groups=6), nn.Conv2d(12, 6, 1)))},
        "of 6 groups",
    ),
}


@pytest.mark.parametrize("parts, reason", QUESTIONABLE.values(), ids=QUESTIONABLE)
def test_layers_in_question_are_refused_by_name(parts, reason):
    model = middle(**parts)
    found = find_width_groups(model, (3, 4, 4))
    refused = {name: why for name, why in found.refused if name.startswith("second")}
    assert any(reason in why for why in refused.values())
    offered = {cut.module for group in found.groups for cut in group.cuts}
    assert "second" not in offered
    assert "stem" in {group.name for group in found.groups}
    assert removal_error(model, found.groups, some_units(found.groups), (3, 4, 4))[0] < EXACT


class NormAndRelu6(nn.BatchNorm2d):
    def forward(self, x):
        return F.relu6(super().forward(x))


def test_a_norm_with_its_activation_inside_is_a_gate():
    model = middle(change=set_second(lambda: nn.Sequential(nn.Conv2d(6, 6, 1), NormAndRelu6(6))))
    found = find_width_groups(model, (3, 4, 4))
    assert gates_of(by_name(found)["second.0"]) == ["second.1"]
    assert removal_error(model, found.groups, some_units(found.groups), (3, 4, 4))[0] < EXACT


def test_a_module_under_two_names_is_one_layer():
    model = middle(change=lambda net: setattr(net, "again", net.second))
    found = find_width_groups(model, (3, 4, 4))
    assert len(found.groups) == 4
    assert removal_error(model, found.groups, some_units(found.groups), (3, 4, 4))[0] < EXACT


def test_a_network_that_branches_on_its_image_is_one_line():
    model = middle(call=lambda net, x: net.second(x) if x.sum() > 0 else net.third(x))
    with pytest.raises(ModelError, match=r"channels of a \(3, 4, 4\) image cannot be followed") as error:
        find_width_groups(model, (3, 4, 4))
    assert "\n" not in str(error.value)


def test_a_group_that_fails_its_trial_is_named_and_others_stay(monkeypatch):
    monkeypatch.setattr(width_trial, "_close", lambda a, b: a.shape == b.shape and torch.equal(a, a))
    model = randomised(Between(REFUSED_BETWEEN["a width written down"]))
    found = find_width_groups(model, (3, 8, 8))
    assert [group.name for group in found.groups] == ["second"]
    assert "does not run without" in dict(found.refused)["first"]


# on disk


@pytest.mark.parametrize("source", ["zoo:resnet20", "torchvision:mobilenet_v2"])
def test_a_narrowed_network_comes_back(source, tmp_path):
    loaded = load_model(source, classes=10, input_size=(32, 32))
    model = randomised(loaded.module)
    groups = find_width_groups(model, IMAGE).groups
    narrowings = narrow_(model, groups, some_units(groups))
    save_artefact(tmp_path, Plan(model=loaded.ref, narrowings=narrowings), model)
    again = load(tmp_path)
    x = torch.randn(2, *IMAGE)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
    assert len(narrowings) == len(groups)
