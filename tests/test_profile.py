"""The costs of a model equal what formulas, shapes and an independent counter say."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgecompress.core.costs import op_macs, op_params
from edgecompress.core.types import Op
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable
from edgecompress.nets.zoo.cifar_resnets import CifarResNet


def rows_by_name(module: nn.Module, *shape: int):
    return {row.name: row for row in profile(module, shape)}


def thop_macs(module: nn.Module, image: torch.Tensor) -> int:
    """Counts with thop; its rules for batch norm and adaptive pooling, which we count as free, are off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports the deprecated distutils
        import thop

        free = {nn.BatchNorm2d: lambda *_: None, nn.AdaptiveAvgPool2d: lambda *_: None}
        macs, _ = thop.profile(module, (image,), custom_ops=free, verbose=False)
    return round(macs)


@given(
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    bias=st.booleans(),
)
@settings(max_examples=40)
def test_a_convolution_costs_what_its_shape_says(groups, kernel, stride, dilation, size, bias):
    conv = nn.Conv2d(4, 8, kernel, stride, 1, dilation, groups, bias)
    op = Op(
        kind="conv2d", inputs=4, outputs=8, kernel=kernel, stride=(stride, stride), padding=(1, 1),
        dilation=(dilation, dilation), groups=groups, bias=bias,
    )  # fmt: skip
    (row,) = profile(conv, (4, *size))
    assert (row.kind, row.macs, row.params) == ("conv2d", op_macs(op, size), op_params(op))
    assert row.in_shape == (4, *size)
    assert row.out_shape == tuple(conv(torch.zeros(1, 4, *size)).shape[1:])
    assert row.weight_bytes == 4 * row.params
    assert row.activation_bytes == 4 * torch.Size(row.out_shape).numel()


def test_a_linear_layer_costs_its_weights_once_per_token():
    (row,) = profile(nn.Linear(6, 5), (2, 3, 6))
    assert (row.kind, row.macs, row.params) == ("linear", 2 * 3 * 6 * 5, 6 * 5 + 5)


def test_a_transposed_convolution_multiplies_its_kernel_at_every_input_pixel():
    (row,) = profile(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (4, 5, 7))
    assert row.kind == "ConvTranspose2d"
    assert row.macs == 5 * 7 * 4 * (6 // 2) * 9


def test_thop_counts_the_same_on_a_small_residual_network():
    network = CifarResNet(1, classes=10).eval()
    assert total_macs(profile(network, (3, 32, 32))) == thop_macs(network, torch.zeros(1, 3, 32, 32))


def test_resnet18_costs_what_the_papers_count():
    ensure_torchvision_importable()
    from torchvision.models import resnet18

    network = resnet18(weights=None)
    rows = profile(network, (3, 224, 224))
    norm_elements = sum(torch.Size(row.out_shape).numel() for row in rows if row.kind == "norm")
    pooling = (7 * 7 + 1) * 512
    assert total_macs(rows) == thop_macs(network, torch.zeros(1, 3, 224, 224))
    assert total_macs(rows) + 2 * norm_elements + pooling == 1_819_066_368  # thop's own rules
    assert total_params(network) == sum(row.params for row in rows) == 11_689_512


class Block(nn.Module):
    """A transformer block on a 4x4 map of 8 channels: 16 tokens of width 8."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = attention
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        x = x + self.attention(self.norm(x))
        return self.mlp(x)


class TorchAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class WeightedTorchAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=True)[0]


class CalledAttention(nn.Module):
    """Its linear layers are called, so they have rows of their own."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.mix(*qkv).transpose(1, 2).flatten(2))

    def mix(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class SpelledOutAttention(CalledAttention):
    def mix(self, q, k, v):
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v


class InferenceAttention(CalledAttention):
    @torch.inference_mode()
    def forward(self, x):
        return super().forward(x)


PROJECTIONS = 4 * 16 * 8 * 8  # query, key, value and output: 16 tokens, 8 -> 8
PRODUCTS = 2 * 16 * 16 * 8  # scores and their use on the values, all heads together
MLP = 2 * 16 * 8 * 32


@pytest.mark.parametrize("kind", [TorchAttention, WeightedTorchAttention])
def test_torch_attention_is_one_row_with_all_its_weights_and_products(kind):
    rows = rows_by_name(Block(kind(8, 2, batch_first=True)), 8, 4, 4)
    attention = rows["attention"]
    assert attention.kind == "attention"
    assert attention.macs == PROJECTIONS + PRODUCTS
    assert attention.params == 4 * 8 * 8 + 4 * 8
    assert "attention.out_proj" not in rows
    assert total_macs(tuple(rows.values())) == PROJECTIONS + PRODUCTS + MLP


@pytest.mark.parametrize("kind", [CalledAttention, SpelledOutAttention, InferenceAttention])
@pytest.mark.parametrize("heads", [1, 2])
def test_products_of_written_attention_are_its_own_row(kind, heads):
    rows = rows_by_name(Block(kind(heads)), 8, 4, 4)
    assert (rows["attention"].kind, rows["attention"].macs) == ("attention", PRODUCTS)
    assert rows["attention.qkv"].macs + rows["attention.proj"].macs == PROJECTIONS
    assert total_macs(tuple(rows.values())) == PROJECTIONS + PRODUCTS + MLP


def test_window_attention_of_swin_is_counted():
    ensure_torchvision_importable()
    from torchvision.models.swin_transformer import ShiftedWindowAttention

    attention = ShiftedWindowAttention(8, window_size=[2, 2], shift_size=[0, 0], num_heads=2)
    (row,) = profile(attention, (4, 4, 8))  # a map of 4x4 tokens, channels last
    assert row.kind == "attention"
    assert row.macs == PROJECTIONS + 4 * (2 * 4 * 4 * 8)  # four windows of four tokens
    assert row.params == total_params(attention)


def test_the_fast_path_of_torch_hides_nothing_and_is_put_back():
    layer = nn.TransformerEncoderLayer(8, 2, 32, batch_first=True)
    torch.backends.mha.set_fastpath_enabled(True)
    rows = profile(nn.Sequential(nn.Flatten(2), layer), (16, 2, 4))
    assert torch.backends.mha.get_fastpath_enabled()
    assert total_macs(rows) == PROJECTIONS + PRODUCTS + MLP


def test_shared_weights_are_counted_once_and_products_each_time():
    shared = nn.Conv2d(3, 3, 3, padding=1, bias=False)
    network = nn.Sequential(shared, nn.ReLU(), shared)
    (row,) = profile(network, (3, 8, 8))
    assert row.params == total_params(network) == 81
    assert row.macs == 2 * 81 * 64


def test_a_weight_two_layers_share_is_counted_where_it_is_first_used():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    rows = profile(nn.Sequential(first, second), (1, 1, 4))
    assert [(row.params, row.macs) for row in rows] == [(16, 16), (0, 16)]


class Backwards(nn.Module):
    """Its layers run in another order than they are defined, one of them never."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.last = nn.Linear(4, 2)
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(3, 4, 2, stride=(2, 1), groups=1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.last(self.first(self.norm(x)).mean((2, 3))) * self.scale


def test_rows_follow_the_order_of_running_and_idle_layers_come_last():
    rows = profile(Backwards(), (3, 4, 4))
    assert [row.name for row in rows] == ["", "norm", "first", "last", "unused"]
    assert [row.kind for row in rows] == ["Backwards", "norm", "conv2d", "linear", "linear"]
    assert rows[-1].macs == 0
    assert rows[2].detail == "2x2, stride 2x1"
    assert sum(row.params for row in rows) == total_params(Backwards())


def test_the_model_is_left_as_it_was():
    network = CifarResNet(1, classes=4).train()
    network.layer1.eval()
    modes = [child.training for child in network.modules()]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    seed = torch.get_rng_state()
    profile(network, (3, 32, 32))
    assert [child.training for child in network.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in network.modules())
    assert torch.equal(torch.get_rng_state(), seed)


def test_a_model_that_fails_is_left_as_it_was_too():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(5, 5)).train()
    torch.backends.mha.set_fastpath_enabled(True)
    with pytest.raises(RuntimeError):
        profile(network, (3, 8, 8))
    assert network.training and network[0].training
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in network.modules())
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_cost_the_same_products(dtype):
    network = CifarResNet(1, classes=4)
    assert profile(network.to(dtype), (3, 32, 32)) == profile(network.float(), (3, 32, 32))
