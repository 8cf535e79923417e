"""Finds what transformers are narrowed in: MLPs by their hidden width, self-attention by its heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgecompress.core.types import Op, Record, Size
from edgecompress.nets.modules import zero_image

_HEADS = ("heads", "num_heads")
_PACKED, _APART = ("qkv", "proj"), ("q", "k", "v", "proj")


class Unit(Record):
    """An MLP or a self-attention: operators one after the other, as of one token after the other."""

    name: str
    """Dotted name of the module."""
    ops: tuple[Op, ...]
    in_size: Size
    """(tokens, 1)."""


def find_units(model: nn.Module, input_shape: tuple[int, int, int]) -> tuple[Unit, ...]:
    """Returns the MLPs and self-attentions of a network that see all tokens at once, in forward order.

    Attention in windows is left out: its time does not depend on the tokens of the image alone.
    """
    found = {name: ops for name, module in model.named_modules() if (ops := _ops_of(module))}
    shapes = _input_shapes(model, list(found), input_shape)
    return tuple(
        Unit(name=name, ops=found[name], in_size=(shape[:-1].numel(), 1))
        for name, shape in shapes.items()
        if shape[0] == 1 and (len(shape) == 3 or found[name][1].kind == "gelu")
    )


def _ops_of(module: nn.Module) -> tuple[Op, ...] | None:
    return _mlp(module) or _attention(module)


def _mlp(module: nn.Module) -> tuple[Op, ...] | None:
    parts = list(module.children())
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    if len(linears) != 2 or not any(isinstance(part, nn.GELU) for part in parts):
        return None
    first, last = linears
    hidden = first.out_features
    if hidden != last.in_features:
        return None
    return (
        _linear(first.in_features, hidden),
        _op("gelu", hidden, hidden),
        _linear(hidden, last.out_features),
    )


def _attention(module: nn.Module) -> tuple[Op, ...] | None:
    if isinstance(module, nn.MultiheadAttention):
        return _attention_ops(module.embed_dim, module.embed_dim, module.num_heads)
    heads = next((getattr(module, name) for name in _HEADS if hasattr(module, name)), None)
    children = dict(module.named_children())
    for names in (_PACKED, _APART):
        linears = [children.get(name) for name in names]
        if isinstance(heads, int) and all(isinstance(one, nn.Linear) for one in linears):
            first, last = linears[0], linears[-1]
            assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)  # for the type checker
            return _attention_ops(first.in_features, last.in_features, heads)
    return None


def _attention_ops(width: int, inner: int, heads: int) -> tuple[Op, ...] | None:
    if inner % heads:
        return None
    attention = Op(kind="attention", inputs=3 * inner, outputs=inner, groups=heads)
    return (_linear(width, 3 * inner), attention, _linear(inner, width))


def _linear(inputs: int, outputs: int) -> Op:
    return Op(kind="linear", inputs=inputs, outputs=outputs, bias=True)


def _op(kind: str, inputs: int, outputs: int) -> Op:
    return Op.model_validate({"kind": kind, "inputs": inputs, "outputs": outputs})


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
