"""The networks that come with their weights: what they promise to methods, exporters and users."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import edgecompress
from edgecompress.data.sources import open_source
from edgecompress.data.splits import make_splits
from edgecompress.nets.zoo.embedded import FASHION_RESNET, FASHION_VIT, Attention

ENTRIES = pytest.mark.parametrize("entry", [FASHION_RESNET, FASHION_VIT], ids=lambda entry: entry.name)


def trained(entry):
    model = entry.build(entry.classes)
    model.load_state_dict(load_file(entry.weights()))
    return model.eval()


def targets(entry, model):
    return {name: module for name, module in model.named_modules() if entry.is_target(name, module)}


@ENTRIES
@torch.inference_mode()
def test_shipped_weights_recognise_images_they_were_not_trained_on(entry):
    source = open_source(entry.data, entry.preprocess)
    report = make_splits(source, calibration=0, selection=0, report=400, seed=0).report
    model = trained(entry)
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in report.batches(100))
    assert right / len(report) > 0.87


@ENTRIES
def test_another_number_of_classes_changes_the_head_only(entry):
    ten, three = entry.build(10), entry.build(3)
    assert three(torch.zeros(2, 1, 28, 28)).shape == (2, 3)
    differing = [n for n, p in three.named_parameters() if p.shape != ten.get_parameter(n).shape]
    assert differing == ["head.weight", "head.bias"]


@ENTRIES
def test_every_target_is_called_and_most_weights_are_in_them(entry):
    model, called = entry.build(10).eval(), []
    found = targets(entry, model)
    for name, module in found.items():
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    model(torch.zeros(1, 1, 28, 28))
    assert sorted(called) == sorted(found)
    inside = sum(p.numel() for module in found.values() for p in module.parameters())
    assert inside > 0.8 * sum(p.numel() for p in model.parameters())


def test_targets_of_the_cnn_are_its_3x3_convolutions_but_the_first():
    model = FASHION_RESNET.build(10)
    convs = {n for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)}
    assert targets(FASHION_RESNET, model).keys() == convs - {"conv1"}


def test_targets_of_the_transformer_are_all_linear_layers_but_the_head():
    model = FASHION_VIT.build(10)
    linears = {n for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert targets(FASHION_VIT, model).keys() == linears - {"head"}


class RankSpy(TorchDispatchMode):
    """Notes the number of dimensions of every result that torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.ranks += [leaf.ndim for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return result


@ENTRIES
def test_tensors_have_at_most_four_dimensions(entry):
    model = entry.build(10).eval()
    with RankSpy() as spy:
        model(torch.zeros(2, 1, 28, 28))
    assert len(spy.ranks) > 20 and max(spy.ranks) <= 4


@torch.inference_mode()
def test_dropping_dead_query_and_key_channels_changes_nothing():
    torch.manual_seed(0)
    attention, x = Attention(24, heads=4).double(), torch.randn(2, 5, 24, dtype=torch.float64)
    alive = torch.tensor([[6 * head + i for i in (0, 2, 3)] for head in range(4)]).flatten()
    dead = [i for i in range(24) if i not in alive]
    attention.q.weight[dead] = 0
    attention.q.bias[dead] = 0
    before = attention(x)
    for name in ("q", "k"):
        setattr(attention, name, keep_outputs(getattr(attention, name), alive))
    torch.testing.assert_close(attention(x), before)


@torch.inference_mode()
def test_dropping_dead_value_channels_changes_nothing():
    torch.manual_seed(0)
    attention, x = Attention(24, heads=4).double(), torch.randn(2, 5, 24, dtype=torch.float64)
    alive = torch.tensor([[6 * head + i for i in (1, 4)] for head in range(4)]).flatten()
    attention.proj.weight[:, [i for i in range(24) if i not in alive]] = 0
    before = attention(x)
    attention.v = keep_outputs(attention.v, alive)
    proj = nn.Linear(len(alive), 24, dtype=torch.float64)
    proj.weight.copy_(attention.proj.weight[:, alive])
    proj.bias.copy_(attention.proj.bias)
    attention.proj = proj
    torch.testing.assert_close(attention(x), before)


def keep_outputs(linear: nn.Linear, kept: torch.Tensor) -> nn.Linear:
    narrow = nn.Linear(linear.in_features, len(kept), dtype=linear.weight.dtype)
    narrow.weight.copy_(linear.weight[kept])
    narrow.bias.copy_(linear.bias[kept])
    return narrow


@torch.inference_mode()
def test_attention_agrees_with_the_one_of_torch():
    torch.manual_seed(0)
    ours, x = Attention(24, heads=4).double(), torch.randn(2, 5, 24, dtype=torch.float64)
    theirs = nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.k.weight, ours.v.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.k.bias, ours.v.bias]))
    theirs.out_proj.load_state_dict(ours.proj.state_dict())
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])


def test_everything_that_is_shipped_stays_small():
    package = Path(edgecompress.__file__).parent
    files = [*package.rglob("*.npz"), *package.rglob("*.safetensors")]
    assert len(files) >= 3 and sum(file.stat().st_size for file in files) < 8e6
