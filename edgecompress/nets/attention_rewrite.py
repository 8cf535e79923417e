"""Puts self-attention in terms of plain layers, wherever a network calls it in a way that can be."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from edgecompress.errors import UnsupportedLayer
from edgecompress.nets.attention import from_multihead, from_timm, is_timm_attention
from edgecompress.nets.folding import exchange_
from edgecompress.nets.modules import zero_image
from edgecompress.nets.window_attention import (
    from_patch_merging,
    from_shifted_window,
    is_patch_merging,
    is_shifted_window,
)

Call = tuple[tuple[object, ...], dict[str, object]]
"""Positional and named arguments."""


def rewrite_attention_(network: nn.Module, input_shape: tuple[int, int, int]) -> None:
    """Exchanges attention modules for equal ones of `nets.attention`, in place; others stay.

    The network must be in eval mode; it is run once on a black image to see how it calls them.
    """
    kinds = [module for module in network.modules() if _rewriter(module) is not None]
    replaced: dict[nn.Module, nn.Module] = {}
    for module, calls in _calls(network, kinds, input_shape).items():
        rewrite = _rewriter(module)
        assert rewrite is not None
        with contextlib.suppress(UnsupportedLayer):
            replaced[module] = rewrite(module, calls)
    exchange_(network, replaced)


def _rewriter(module: nn.Module) -> Callable[[nn.Module, list[Call]], nn.Module] | None:
    if type(module) is nn.MultiheadAttention:
        return _multihead
    if is_timm_attention(module):
        return _timm
    if is_shifted_window(module):
        return _shifted_window
    return _patch_merging if is_patch_merging(module) else None


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


def _shifted_window(module: nn.Module, calls: list[Call]) -> nn.Module:
    sizes = {tuple(cast(Tensor, args[0]).shape[1:3]) for args, _ in calls}
    if len(sizes) != 1:
        raise UnsupportedLayer("is called with maps of several sizes")
    height, width = sizes.pop()
    return from_shifted_window(module, (height, width))


def _patch_merging(module: nn.Module, calls: list[Call]) -> nn.Module:
    return from_patch_merging(module)
