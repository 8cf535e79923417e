"""Rewritten attention computes what the libraries' modules compute, on tensors of at most four dimensions."""

import copy
import warnings

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgecompress.errors import ModelError, UnsupportedLayer
from edgecompress.nets.attention import Attention, from_multihead, from_timm
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable
from edgecompress.nets.window_attention import Windows, cut, from_patch_merging, from_shifted_window, join

ensure_torchvision_importable()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from timm.layers.attention import Attention as TimmAttention
from torchvision.models.swin_transformer import (  # noqa: E402  # needs the line above
    PatchMerging,
    PatchMergingV2,
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
)


def lively(module):
    """Returns a module in float64 and eval mode whose every weight matters."""
    generator = torch.Generator().manual_seed(0)
    module = module.double().eval()
    for parameter in module.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
        nn.init.normal_(parameter, std=max(fan_in, 1) ** -0.5, generator=generator)
    return module


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Dimensions(TorchDispatchMode):
    """Knows the most dimensions a tensor had, and which operators ran."""

    def __init__(self):
        super().__init__()
        self.most, self.names = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, output))
        self.most = max([self.most, *(leaf.ndim for leaf in leaves if isinstance(leaf, torch.Tensor))])
        self.names.add(func._schema.name)
        return output


@torch.no_grad()
def check_dimensions(module, *inputs):
    with Dimensions() as seen:
        module(*inputs)
    assert seen.most <= 4
    assert not any("scaled_dot_product" in name for name in seen.names)


@given(
    heads=st.integers(1, 3),
    head_dim=st.integers(1, 5),
    tokens=st.integers(1, 6),
    images=st.integers(1, 3),
    bias=st.booleans(),
)
def test_multihead_attention_is_computed_the_same(heads, head_dim, tokens, images, bias):
    original = lively(nn.MultiheadAttention(heads * head_dim, heads, bias=bias, batch_first=True))
    new, x = from_multihead(original), numbers(images, tokens, heads * head_dim)
    torch.testing.assert_close(new(x, x, x), original(x, x, x))
    torch.testing.assert_close(new(x, x, x, need_weights=False), original(x, x, x, need_weights=False))
    each = new(x, x, x, average_attn_weights=False), original(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(*each)


def test_no_tensor_has_more_than_four_dimensions():
    x, maps = numbers(2, 5, 8), numbers(2, 7, 6, 8)
    multihead = from_multihead(lively(nn.MultiheadAttention(8, 2, batch_first=True)))
    check_dimensions(multihead, x, x, x)
    check_dimensions(from_timm(lively(TimmAttention(8, 2))), x)
    check_dimensions(from_shifted_window(lively(ShiftedWindowAttention(8, [3, 3], [1, 1], 2)), (7, 6)), maps)
    check_dimensions(from_patch_merging(lively(PatchMerging(8))), maps)


UNLIKE = {
    "tokens first": {"batch_first": False},
    "keys of another width": {"kdim": 4},
    "keys with a bias token": {"add_bias_kv": True},
    "a token of zeros": {"add_zero_attn": True},
}


@pytest.mark.parametrize("options", UNLIKE.values(), ids=UNLIKE)
def test_multihead_attention_that_is_more_than_self_attention_is_refused(options):
    with pytest.raises(UnsupportedLayer, match="MultiheadAttention"):
        from_multihead(nn.MultiheadAttention(8, 2, **{"batch_first": True} | options))


@pytest.mark.parametrize("mask", [{"attn_mask": torch.zeros(3, 3)}, {"is_causal": True}])
def test_a_mask_is_refused(mask):
    multihead = nn.MultiheadAttention(4, 1, batch_first=True)
    x = torch.zeros(1, 3, 4)
    with pytest.raises(ModelError, match="without a mask"):
        from_multihead(multihead)(x, x, x, **mask)
    with pytest.raises(ModelError, match="without a mask"):
        from_timm(TimmAttention(4, 1))(x, **mask)


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_of_torch_calls_what_stands_in_its_attention(norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
    original = lively(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    new, x = copy.deepcopy(original), numbers(2, 5, 8)
    for layer in new.layers:
        layer.self_attn = from_multihead(layer.self_attn)
    with torch.no_grad(), Dimensions() as seen:  # without gradients torch would take its fused operator
        actual = new(x)
    assert "aten::_transformer_encoder_layer_fwd" not in seen.names
    torch.testing.assert_close(actual, original(x))


@pytest.mark.parametrize("head_dim", [None, 3])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_attention_of_timm_is_computed_the_same(head_dim, qkv_bias):
    original = lively(TimmAttention(8, 2, attn_head_dim=head_dim, qkv_bias=qkv_bias))
    x = numbers(2, 5, 8)
    torch.testing.assert_close(from_timm(original)(x), original(x))


def test_low_rank_chains_in_the_attention_of_timm_stay():
    original = TimmAttention(8, 2)
    original.qkv = nn.Sequential(nn.Linear(8, 3, bias=False), nn.Linear(3, 24))
    new, x = from_timm(lively(original)), numbers(2, 5, 8)
    assert new.qkv is original.qkv
    torch.testing.assert_close(new(x), original(x))


def test_attention_of_timm_with_more_inside_is_refused():
    for options in ({"qk_norm": True}, {"scale_norm": True}, {"gated": True}):
        with pytest.raises(UnsupportedLayer, match="normalises or gates"):
            from_timm(TimmAttention(8, 2, norm_layer=nn.LayerNorm, **options))
    with pytest.raises(UnsupportedLayer, match="Linear is not the attention"):
        from_timm(nn.Linear(2, 2))


@given(keep=st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
def test_heads_without_their_unused_dimensions_compute_the_same_at_the_old_scale(keep):
    heads, head_dim, width = 2, 5, 6
    wide = lively(from_timm(TimmAttention(width, heads, attn_head_dim=head_dim, qkv_bias=True)))
    kept = torch.zeros(heads, head_dim, dtype=torch.bool)
    kept[:, keep] = True
    rows, columns = kept.flatten().repeat(3), kept.flatten()
    with torch.no_grad():
        wide.qkv.weight[~rows], wide.qkv.bias[~rows] = 0.0, 0.0
    qkv = nn.Linear(width, int(rows.sum()), dtype=torch.float64)
    proj = nn.Linear(int(columns.sum()), width, dtype=torch.float64)
    qkv.load_state_dict({"weight": wide.qkv.weight[rows], "bias": wide.qkv.bias[rows]})
    proj.load_state_dict({"weight": wide.proj.weight[:, columns], "bias": wide.proj.bias})
    narrow = Attention(qkv, proj, heads=heads, head_dim=len(keep), scale=wide.scale)
    x = numbers(2, 4, width)
    torch.testing.assert_close(narrow(x), wide(x))


sides = st.integers(1, 9)
extents = st.integers(1, 4)


@given(size=st.tuples(sides, sides), window=st.tuples(extents, extents), data=st.data())
def test_windows_join_to_the_map_they_were_cut_from(size, window, data):
    shift = tuple(data.draw(st.integers(0, extent - 1)) for extent in window)
    windows, x = Windows(size, window, shift), numbers(2, *size, 3)
    tokens = cut(x, windows)
    assert tokens.shape[1:] == (windows.tokens, 3)
    assert torch.equal(join(tokens, windows), x)


@given(
    size=st.tuples(sides, sides),
    window=st.tuples(extents, extents),
    is_shifted=st.tuples(st.booleans(), st.booleans()),
    images=st.integers(1, 2),
)
@example(size=(4, 6), window=(2, 3), is_shifted=(True, True), images=2)
def test_window_attention_is_computed_the_same_at_every_size(size, window, is_shifted, images):
    shift = [extent // 2 if shifted else 0 for extent, shifted in zip(window, is_shifted, strict=True)]
    original = lively(ShiftedWindowAttention(6, list(window), shift, 2))
    x = numbers(images, *size, 6)
    torch.testing.assert_close(from_shifted_window(original, size)(x), original(x))


def test_a_shift_is_dropped_where_one_window_covers_the_map():
    original = ShiftedWindowAttention(6, [3, 3], [1, 1], 2)
    assert from_shifted_window(original, (3, 2)).windows.shift == (0, 0)
    assert from_shifted_window(original, (3, 4)).windows.shift == (0, 1)
    assert from_shifted_window(original, (3, 2)).bias.shape[0] == 1
    assert from_shifted_window(original, (3, 4)).bias.shape[0] == 2  # one mask per window


def test_window_attention_is_for_one_size():
    new = from_shifted_window(ShiftedWindowAttention(6, [3, 3], [0, 0], 2), (6, 6))
    with pytest.raises(ModelError, match=r"got a map of \(6, 7\), made for \(6, 6\)"):
        new(torch.zeros(1, 6, 7, 6))


@given(size=st.tuples(sides, sides), is_chain=st.booleans())
def test_patches_are_merged_the_same_at_every_size(size, is_chain):
    original = PatchMerging(3)
    if is_chain:
        original.reduction = nn.Sequential(nn.Linear(12, 4, bias=False), nn.Linear(4, 6))
    lively(original)
    before, x = copy.deepcopy(original.state_dict()), numbers(2, *size, 3)
    torch.testing.assert_close(from_patch_merging(original)(x), original(x))
    assert all(torch.equal(value, before[name]) for name, value in original.state_dict().items())


def test_the_second_version_of_swin_is_refused():
    with pytest.raises(UnsupportedLayer, match="ShiftedWindowAttentionV2"):
        from_shifted_window(ShiftedWindowAttentionV2(6, [3, 3], [0, 0], 2), (6, 6))
    with pytest.raises(UnsupportedLayer, match="PatchMergingV2"):
        from_patch_merging(PatchMergingV2(3))
    odd = PatchMerging(3)
    odd.reduction = nn.Identity()
    with pytest.raises(UnsupportedLayer, match="other layers"):
        from_patch_merging(odd)
