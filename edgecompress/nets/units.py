"""Finds what transformers are narrowed in: MLPs by hidden width, self-attention by heads and their width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgecompress.core.types import Op, Record, Size
from edgecompress.nets.attention import AsMultihead
from edgecompress.nets.modules import zero_image
from edgecompress.nets.window_attention import WindowAttention

_HEADS = ("heads", "num_heads")
_PACKED, _APART = ("qkv", "proj"), ("q", "k", "v", "proj")

Parts = tuple[tuple[Op, ...], tuple[str, ...]]
"""Operators of a unit, and the names of its linear layers below that of its module."""


class Unit(Record):
    """An MLP or a self-attention: operators one after the other, as of one token after the other."""

    name: str
    """Dotted name of the module."""
    ops: tuple[Op, ...]
    in_size: Size
    """(tokens, windows); one window where all tokens see each other."""
    layers: tuple[str, ...]
    """Dotted names of its linear layers; the last reads what lies within. None where they are not called."""


def find_units(model: nn.Module, input_shape: tuple[int, int, int]) -> tuple[Unit, ...]:
    """Returns the MLPs and self-attentions of a network, in forward order.

    Attention in windows is found once it is rewritten (`rewrite_attention_`), attention of other kinds that
    does not get tokens (1, tokens, width) is left out.
    """
    inside = {module.attention for module in model.modules() if isinstance(module, AsMultihead)}
    found = {
        name: parts
        for name, module in model.named_modules()
        if module not in inside and (parts := _parts_of(module))
    }
    shapes = _input_shapes(model, list(found), input_shape)
    units = (_unit(name, model.get_submodule(name), found[name], shape) for name, shape in shapes.items())
    return tuple(unit for unit in units if unit is not None)


def _unit(name: str, module: nn.Module, parts: Parts, shape: torch.Size) -> Unit | None:
    ops, layers = parts
    if isinstance(module, WindowAttention):
        height, width = module.windows.padded
        size = (module.windows.tokens, height * width // module.windows.tokens)
    elif shape[0] == 1 and (len(shape) == 3 or ops[1].kind == "gelu"):
        size = (shape[:-1].numel(), 1)
    else:
        return None
    names = tuple(f"{name}.{layer}" if name else layer for layer in layers)
    return Unit(name=name, ops=ops, in_size=size, layers=names)


def _parts_of(module: nn.Module) -> Parts | None:
    return _mlp(module) or _attention(module)


def _mlp(module: nn.Module) -> Parts | None:
    children = dict(module.named_children())
    linears = {name: part for name, part in children.items() if isinstance(part, nn.Linear)}
    if len(linears) != 2 or not any(isinstance(part, nn.GELU) for part in children.values()):
        return None
    first, last = linears.values()
    hidden = first.out_features
    if hidden != last.in_features:
        return None
    gelu = Op(kind="gelu", inputs=hidden, outputs=hidden)
    return (_linear(first.in_features, hidden), gelu, _linear(hidden, last.out_features)), tuple(linears)


def _attention(module: nn.Module) -> Parts | None:
    if isinstance(module, nn.MultiheadAttention):
        return _attention_parts(module.embed_dim, module.embed_dim, module.num_heads, ())
    if isinstance(module, AsMultihead):  # which may or may not call its attention as a module
        inside = _attention(module.attention)
        return None if inside is None else (inside[0], tuple(f"attention.{name}" for name in inside[1]))
    heads = next((getattr(module, name) for name in _HEADS if hasattr(module, name)), None)
    children = dict(module.named_children())
    for names in (_PACKED, _APART):
        linears = [children.get(name) for name in names]
        if isinstance(heads, int) and all(isinstance(one, nn.Linear) for one in linears):
            first, last = linears[0], linears[-1]
            assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)  # for the type checker
            return _attention_parts(first.in_features, last.in_features, heads, names)
    return None


def _attention_parts(width: int, inner: int, heads: int, layers: tuple[str, ...]) -> Parts | None:
    if inner % heads:
        return None
    attention = Op(kind="attention", inputs=3 * inner, outputs=inner, groups=heads)
    return (_linear(width, 3 * inner), attention, _linear(inner, width)), layers


def _linear(inputs: int, outputs: int) -> Op:
    return Op(kind="linear", inputs=inputs, outputs=outputs, bias=True)


@torch.no_grad()
def _input_shapes(
    model: nn.Module, names: list[str], input_shape: tuple[int, int, int]
) -> dict[str, torch.Size]:
    shapes: dict[str, torch.Size] = {}

    def record(name: str, inputs: tuple[Tensor, ...]) -> None:
        if inputs:
            shapes[name] = inputs[0].shape

    handles = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, x, name=name: record(name, x))
        for name in names
    ]
    try:
        model(zero_image(model, input_shape))
    finally:
        for handle in handles:
            handle.remove()
    return shapes
