"""Self-attention in operators every exporter and edge runtime knows.

The libraries' own attention modules use the fused attention operator and tensors of five dimensions, and
some read the weights of their linear layers without calling them. The modules here compute the same from
plain matrix products, on tensors of at most four dimensions, and call their layers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from edgecompress.errors import ModelError, UnsupportedLayer
from edgecompress.nets.probing import gives, random_like, with_random_weights

_TIMM_CLASSES = ("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention")
"""Where timm keeps the attention of its plain vision transformers, in newer and in older versions."""

_HEADS = ("num_heads", "heads", "n_heads")
"""What others call the number of heads."""


class Attention(nn.Module):
    """Multi-head self-attention of tokens (N, tokens, width).

    `qkv` maps tokens to queries, keys and values side by side, each head after head; `proj` takes the
    outputs of the heads. `head_dim` and `scale` are constants of their own: when heads are made narrower,
    the scale must stay that of training, or the softmax gets another temperature.
    """

    def __init__(self, qkv: nn.Module, proj: nn.Module, *, heads: int, head_dim: int, scale: float) -> None:
        super().__init__()
        self.qkv = qkv
        self.proj = proj
        self.heads = heads
        self.head_dim = head_dim
        self.scale = scale

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Returns mixed tokens; the two options exist because timm's blocks pass them.

        Raises:
            ModelError: a mask is given.
        """
        _refuse_mask(attn_mask is not None or is_causal)
        return self.with_weights(x)[0]

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mixed tokens and the weights (N, heads, tokens, tokens) they were mixed with."""
        mixed, weights = attend(self.qkv(x), heads=self.heads, head_dim=self.head_dim, scale=self.scale)
        return self.proj(mixed), weights


class AsMultihead(nn.Module):
    """Self-attention that is called like `nn.MultiheadAttention`; keys and values are the queries."""

    batch_first = True
    in_proj_bias = None
    """With these two `nn.TransformerEncoderLayer` calls the module and takes no fused operator instead."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns mixed tokens, and their weights or None.

        Raises:
            ModelError: a mask is given.
        """
        _refuse_mask(key_padding_mask is not None or attn_mask is not None or is_causal)
        if not need_weights:
            return self.attention(query), None
        mixed, weights = self.attention.with_weights(query)
        return mixed, weights.mean(dim=1) if average_attn_weights else weights


def attend(
    qkv: Tensor, *, heads: int, head_dim: int, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns softmax(scale QK^T + bias) V, heads side by side, and the softmax.

    `qkv` is (N, tokens, 3 * heads * head_dim); `bias` must fit (N, heads, tokens, tokens).
    """
    q, k, v = (torch.unflatten(part, -1, (heads, head_dim)) for part in qkv.chunk(3, dim=-1))
    scores = (q.transpose(1, 2) * scale) @ k.permute(0, 2, 3, 1)  # (N, heads, tokens, tokens)
    weights = (scores if bias is None else scores + bias).softmax(dim=-1)
    return (weights @ v.transpose(1, 2)).transpose(1, 2).flatten(2), weights


def from_multihead(module: nn.MultiheadAttention) -> AsMultihead:
    """Returns what computes the same as `module` whenever its query, key and value are one tensor.

    The weights are taken over, not copied. Masks are not taken, and dropout is left out.

    Raises:
        UnsupportedLayer: tokens come first, or the module adds tokens or reads keys of another width.
    """
    if not module.batch_first:
        raise UnsupportedLayer("MultiheadAttention takes tokens before images; set batch_first=True")
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise UnsupportedLayer("MultiheadAttention has keys of its own, only self-attention can be rewritten")
    attention = Attention(
        _linear(module.in_proj_weight, module.in_proj_bias),
        _linear(module.out_proj.weight, module.out_proj.bias),
        heads=module.num_heads,
        head_dim=module.head_dim,
        scale=module.head_dim**-0.5,
    )
    return AsMultihead(attention).train(module.training)


def is_timm_attention(module: nn.Module) -> bool:
    """Tells whether a module is the attention of timm's plain vision transformers."""
    return f"{type(module).__module__}.{type(module).__qualname__}" in _TIMM_CLASSES


def from_timm(module: nn.Module) -> Attention:
    """Returns what computes the same as an attention module of timm's plain vision transformers.

    Its linear layers, or the blocks that stand in their place, are taken over, not copied.

    Raises:
        UnsupportedLayer: it is another module, or normalises or gates inside.
    """
    if not is_timm_attention(module):
        raise UnsupportedLayer(f"{type(module).__name__} is not the attention of timm's vision transformers")
    timm = cast(Any, module)
    parts = [getattr(module, name, None) for name in ("q_norm", "k_norm", "norm", "gate")]
    if not all(part is None or isinstance(part, nn.Identity) for part in parts):
        raise UnsupportedLayer("Attention normalises or gates inside, which cannot be rewritten")
    attention = Attention(timm.qkv, timm.proj, heads=timm.num_heads, head_dim=timm.head_dim, scale=timm.scale)
    return attention.train(module.training)


def is_fused_attention(module: nn.Module) -> bool:
    """Tells whether a module of an unknown class has the parts of an `Attention`."""
    known = isinstance(module, Attention) or is_timm_attention(module)
    parts = all(isinstance(getattr(module, name, None), nn.Module) for name in ("qkv", "proj"))
    return parts and not known and _heads_of(module) is not None


def from_fused(module: nn.Module, tokens: int) -> Attention:
    """Returns an `Attention` of the layers `qkv` and `proj` of a module of an unknown class.

    Whether that computes the same is tried: both run with random weights on so many random tokens, so the
    answer does not depend on the weights of today. The layers are taken over, not copied; dropout is left
    out.

    Raises:
        UnsupportedLayer: it does not compute the same, or its parts do not make an attention.
    """
    attention, trial = _of_parts(module), with_random_weights(module)
    x = random_like(module, (2, tokens, cast(nn.Linear, attention.qkv).in_features))
    if not gives(trial, x, _of_parts(trial)(x)):
        raise UnsupportedLayer("does more or other than plain self-attention of its qkv and proj")
    return attention.train(module.training)


def _of_parts(module: nn.Module) -> Attention:
    qkv, proj, heads = cast(nn.Linear, module.qkv), cast(nn.Linear, module.proj), _heads_of(module)
    if not isinstance(qkv, nn.Linear) or not isinstance(proj, nn.Linear) or heads is None:
        raise UnsupportedLayer("qkv and proj are not linear layers")
    if qkv.out_features % (3 * heads) or qkv.out_features != 3 * proj.in_features:
        widths = f"{qkv.out_features} outputs of qkv and {proj.in_features} inputs of proj"
        raise UnsupportedLayer(f"{heads} heads do not divide {widths}")
    head_dim = qkv.out_features // (3 * heads)
    scale = getattr(module, "scale", None)
    scale = float(scale) if isinstance(scale, int | float) else head_dim**-0.5
    return Attention(qkv, proj, heads=heads, head_dim=head_dim, scale=scale)


def _heads_of(module: nn.Module) -> int | None:
    found = (getattr(module, name, None) for name in _HEADS)
    return next((heads for heads in found if isinstance(heads, int) and heads > 0), None)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Returns a linear layer of these very weights; no random numbers are drawn for it."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = cast(nn.Parameter, weight)
    if bias is not None:
        layer.bias = cast(nn.Parameter, bias)
    return layer


def _refuse_mask(is_masked: bool) -> None:
    if is_masked:
        raise ModelError("attention was rewritten without a mask; rewrite the network as it is called")
