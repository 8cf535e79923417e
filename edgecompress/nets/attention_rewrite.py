"""Puts self-attention in terms of plain layers, wherever a network calls it in a way that can be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from edgecompress.errors import UnsupportedLayer
from edgecompress.nets.attention import (
    from_fused,
    from_multihead,
    from_timm,
    is_fused_attention,
    is_timm_attention,
)
from edgecompress.nets.folding import exchange_
from edgecompress.nets.modules import zero_image
from edgecompress.nets.window_attention import (
    WindowAttention,
    from_patch_merging,
    from_shifted_window,
    is_patch_merging,
    is_shifted_window,
)

Call = tuple[tuple[object, ...], dict[str, object]]
"""Positional and named arguments."""

Refused = tuple[tuple[str, str], ...]
"""Names of modules, each with the reason."""

_NEEDED = "the model needs this very module"


def rewrite_attention_(network: nn.Module, input_shape: tuple[int, int, int]) -> Refused:
    """Exchanges attention modules for equal ones of `nets.attention`, in place; returns which stay, and why.

    Taken are `nn.MultiheadAttention`, the attention of torchvision's ViT and Swin v1 and of timm's vision
    transformers, and modules of any class that have layers `qkv` and `proj` and prove to compute the same.
    The network must be in eval mode; it is run once on a black image to see how it calls them.
    """
    replaced, refused = _rewrites(network, input_shape)
    exchange_(network, replaced)
    foreign = {old: new for old, new in replaced.items() if is_fused_attention(old)}
    reason = _failure(network, input_shape) if foreign else None
    if reason is not None:
        exchange_(network, {new: old for old, new in foreign.items()})
        refused |= dict.fromkeys(foreign, f"{_NEEDED}: {reason}")
    return _named(network, refused)


def attention_left(network: nn.Module, input_shape: tuple[int, int, int]) -> Refused:
    """Returns what `rewrite_attention_` has not rewritten, and why; the network stays as it is."""
    replaced, refused = _rewrites(network, input_shape)
    left = dict.fromkeys(replaced, "was not rewritten") | refused
    return _named(network, {module: why for module, why in left.items() if not is_patch_merging(module)})


def _rewrites(
    network: nn.Module, input_shape: tuple[int, int, int]
) -> tuple[dict[nn.Module, nn.Module], dict[nn.Module, str]]:
    """Returns what can take the place of modules, and why others stay."""
    kinds = [module for module in network.modules() if _rewriter(module) is not None]
    calls = _calls(network, kinds, input_shape)
    replaced: dict[nn.Module, nn.Module] = {}
    refused: dict[nn.Module, str] = {}
    for module in kinds:
        rewrite = _rewriter(module)
        assert rewrite is not None
        try:
            if module not in calls:
                raise UnsupportedLayer("is never called")
            replaced[module] = rewrite(module, calls[module])
        except UnsupportedLayer as error:
            refused[module] = str(error)
    return replaced, refused


def _named(network: nn.Module, refused: dict[nn.Module, str]) -> Refused:
    return tuple((name, refused[module]) for name, module in network.named_modules() if module in refused)


@torch.no_grad()
def _failure(network: nn.Module, input_shape: tuple[int, int, int]) -> str | None:
    """Returns why a network no longer runs; parents may read attributes of the module that was exchanged."""
    try:
        network(zero_image(network, input_shape))
    except (AttributeError, TypeError) as error:
        return str(error).strip().partition("\n")[0]
    return None


def _rewriter(module: nn.Module) -> Callable[[nn.Module, list[Call]], nn.Module] | None:
    if type(module) is nn.MultiheadAttention:
        return _multihead
    if is_timm_attention(module):
        return _timm
    if is_shifted_window(module):
        return _shifted_window
    if is_patch_merging(module):
        return _patch_merging
    is_ours = isinstance(module, WindowAttention)
    return _fused if is_fused_attention(module) and not is_ours else None


@torch.no_grad()
def _calls(
    network: nn.Module, modules: list[nn.Module], input_shape: tuple[int, int, int]
) -> dict[nn.Module, list[Call]]:
    """Returns how the network calls modules; those that never run are left out."""
    seen: dict[nn.Module, list[Call]] = {}
    handles = [
        module.register_forward_pre_hook(
            lambda m, args, kwargs: seen.setdefault(m, []).append((args, kwargs)), with_kwargs=True
        )
        for module in modules
    ]
    try:
        if modules:
            network(zero_image(network, input_shape))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _multihead(module: nn.Module, calls: list[Call]) -> nn.Module:
    attention = cast(nn.MultiheadAttention, module)
    for args, kwargs in calls:
        given = inspect.signature(attention.forward).bind(*args, **kwargs).arguments
        query, key, value = given["query"], given["key"], given["value"]
        if key is not query or value is not query or query.ndim != 3:
            raise UnsupportedLayer("is not called with one batch of tokens as query, key and value")
        _refuse_masks([given.get(name) for name in ("key_padding_mask", "attn_mask", "is_causal")])
    return from_multihead(attention)


def _timm(module: nn.Module, calls: list[Call]) -> nn.Module:
    for args, kwargs in calls:
        _refuse_masks([*args[1:], *kwargs.values()])
    return from_timm(module)


def _refuse_masks(options: list[object]) -> None:
    if any(option is not None and option is not False for option in options):
        raise UnsupportedLayer("is called with a mask")


def _fused(module: nn.Module, calls: list[Call]) -> nn.Module:
    for args, kwargs in calls:
        if not args or not isinstance(args[0], Tensor) or args[0].ndim != 3:
            raise UnsupportedLayer("is not called with tokens (images, tokens, width)")
        if any(option is not None and option is not False for option in (*args[1:], *kwargs.values())):
            raise UnsupportedLayer("is called with more than tokens, such as a mask or positions")
    return from_fused(module, max(cast(Tensor, args[0]).shape[1] for args, _ in calls))


def _shifted_window(module: nn.Module, calls: list[Call]) -> nn.Module:
    sizes = {tuple(cast(Tensor, args[0]).shape[1:3]) for args, _ in calls}
    if len(sizes) != 1:
        raise UnsupportedLayer("is called with maps of several sizes")
    height, width = sizes.pop()
    return from_shifted_window(module, (height, width))


def _patch_merging(module: nn.Module, calls: list[Call]) -> nn.Module:
    return from_patch_merging(module)
