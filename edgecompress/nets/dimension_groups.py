"""Finds the dimensions of a transformer that can be taken away and leave the width of its tokens alone.

Those are the hidden units of MLPs, and the dimensions of attention heads: one set per attention, shared by
queries, keys, values and all heads, so that all heads stay equally wide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import cast

from torch import nn

from edgecompress.core.types import Cut, Group
from edgecompress.errors import UnsupportedLayer
from edgecompress.nets.attention import AsMultihead, Attention
from edgecompress.nets.attention_rewrite import Refused, attention_left
from edgecompress.nets.hidden_flow import Flow, follow
from edgecompress.nets.modules import op_of
from edgecompress.nets.probing import cannot_narrow
from edgecompress.nets.window_attention import WindowAttention

_SEPARATE = ("q", "k", "v", "proj")
"""Linear layers of an attention that has one each for queries, keys and values."""

_STUCK = "does not compute the same without units that are zero; is a width written in it?"


def find_dimension_groups(
    model: nn.Module, input_shape: tuple[int, int, int]
) -> tuple[tuple[Group, ...], Refused]:
    """Returns the groups of a network in forward order, and the modules that have none, each with the reason.

    The network must be in eval mode and should have been through `rewrite_attention_`. It is run on a black
    image and left as it is; a copy with random weights is narrowed, to see that it computes the same. Refused
    are only attentions and MLPs, not layers of other kinds.
    """
    net = _Net(model, follow(model, input_shape))
    refused = dict(attention_left(model, input_shape))
    groups: list[Group] = []
    for module in dict.fromkeys(net.attentions.get(module, module) for module in net.flow.calls):
        try:
            group = _group_of(module, net)
        except UnsupportedLayer as error:
            refused.setdefault(net.names[module], str(error))
        else:
            groups += [group] if group is not None else []
    for module in net.flow.mixing:
        if not _is_attention(module):
            refused.setdefault(net.names[module], "mixes tokens in a way that is not known")
    refused |= dict.fromkeys(_uncalled(net, refused), "its weights are read without calling it")
    stuck = cannot_narrow(model, groups, (1, *input_shape))
    taken = {cut.module for group in groups for cut in group.cuts}
    refused = {name: why for name, why in refused.items() if name not in taken}
    refused |= {group.name: _STUCK for group in stuck}
    return tuple(group for group in groups if group not in stuck), tuple(refused.items())


class _Net:
    """A network that ran once, with what the searches below ask of it."""

    def __init__(self, model: nn.Module, flow: Flow) -> None:
        self.flow = flow
        self.names = {module: name for name, module in model.named_modules()}
        self.attentions = {m.qkv: m for m in model.modules() if isinstance(m, Attention | WindowAttention)}
        """By their first layer: `AsMultihead` does not call its attention as a module."""
        self.owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))

    def check_own_layer(self, layer: nn.Module) -> None:
        """Makes sure that narrowing a linear layer changes nothing else.

        Raises:
            UnsupportedLayer: it might.
        """
        name, calls = self.names[layer], self.flow.calls[layer]
        if op_of(layer).kind != "linear":
            raise UnsupportedLayer(f"{name} is not a linear layer")
        if calls != 1:
            raise UnsupportedLayer(f"{name} is called {calls} times in one forward pass")
        if layer in self.flow.read_as_tensors:
            raise UnsupportedLayer(f"weights of {name} are read without calling it")
        if "weight" not in dict(layer.named_parameters(recurse=False)):
            raise UnsupportedLayer(f"weights of {name} are computed from others")
        if any(self.owners[id(p)] > 1 for p in layer.parameters(recurse=False)):
            raise UnsupportedLayer(f"{name} shares its weights with another layer")


def _uncalled(net: _Net, refused: Collection[str]) -> list[str]:
    """Returns linear layers that others use as tensors; those inside of what is refused are known by that."""
    uncalled = [net.names[layer] for layer in net.flow.read_as_tensors if not net.flow.calls[layer]]
    return sorted(name for name in uncalled if not any(name.startswith(f"{one}.") for one in refused))


def _group_of(module: nn.Module, net: _Net) -> Group | None:
    if module in net.attentions.values():
        return _fused_heads(cast(Attention, module), net)
    if _is_separate(module):
        return _separate_heads(module, net)
    return _hidden(module, net) if isinstance(module, nn.Linear) else None


def _is_attention(module: nn.Module) -> bool:
    return isinstance(module, Attention | AsMultihead | WindowAttention) or _is_separate(module)


# Heads


def _fused_heads(attention: Attention | WindowAttention, net: _Net) -> Group:
    """Returns the dimensions of the heads of one of our attentions."""
    for layer in (attention.qkv, attention.proj):
        net.check_own_layer(layer)
    heads, qkv = attention.heads, net.names[attention.qkv]
    made = Cut(module=qkv, axis="outputs", repeats=3 * heads)
    read = Cut(module=net.names[attention.proj], axis="inputs", repeats=heads)
    own = Cut(module=net.names[attention], axis="head_dim")
    return Group(name=qkv, kind="head_dim", width=attention.head_dim, cuts=(made, read, own), gates=(made,))


def _is_separate(module: nn.Module) -> bool:
    layers = [getattr(module, name, None) for name in _SEPARATE]
    return all(isinstance(layer, nn.Linear) for layer in layers) and isinstance(
        getattr(module, "heads", None), int
    )


def _separate_heads(module: nn.Module, net: _Net) -> Group:
    """Returns the dimensions of the heads of an attention that reads its widths from its layers.

    Whether it does is tried on the attention alone: in a deep network a wrong scale would hardly show.
    """
    parts = {name: cast(nn.Linear, getattr(module, name)) for name in _SEPARATE}
    for layer in parts.values():
        net.check_own_layer(layer)
    heads = cast(int, module.heads)
    widths = {parts["proj"].in_features, *(parts[name].out_features for name in "qkv")}
    if len(widths) != 1 or min(widths) % heads:
        raise UnsupportedLayer(f"{heads} heads do not share the widths {sorted(widths)} evenly")
    alone = _separate_group({name: name for name in _SEPARATE}, heads, min(widths) // heads)
    if cannot_narrow(module, [alone], net.flow.input_shapes[module]):
        raise UnsupportedLayer(_STUCK)
    return _separate_group({name: net.names[layer] for name, layer in parts.items()}, heads, alone.width)


def _separate_group(names: dict[str, str], heads: int, head_dim: int) -> Group:
    made = tuple(Cut(module=names[part], axis="outputs", repeats=heads) for part in "qkv")
    read = Cut(module=names["proj"], axis="inputs", repeats=heads)
    return Group(name=names["q"], kind="head_dim", width=head_dim, cuts=(*made, read), gates=made)


# MLPs


def _hidden(first: nn.Linear, net: _Net) -> Group | None:
    """Returns the hidden units a linear layer makes; None where what follows is no MLP."""
    flow, readers = net.flow, net.flow.readers.get(first, [])
    if first not in flow.active or not (readers or first in flow.others):
        return None
    net.check_own_layer(first)
    if first in flow.others:
        raise UnsupportedLayer(f"its outputs cannot be taken away: {flow.others[first]}")
    if not all(mark.is_zero for _, mark in readers):
        raise UnsupportedLayer("the activation after it does not map zero to zero")
    for reader, _ in readers:
        net.check_own_layer(reader)
    made = Cut(module=net.names[first], axis="outputs")
    read = tuple(Cut(module=net.names[reader], axis="inputs") for reader, _ in readers)
    return Group(name=made.module, kind="hidden", width=first.out_features, cuts=(made, *read), gates=(made,))
