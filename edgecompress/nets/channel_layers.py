"""Finds the layers of an exported graph that can be narrowed, and says why others cannot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import nn
from torch.fx import Node

from edgecompress.nets.channel_steps import ZERO_TO_ZERO, module_stack, operator_name

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d

_OPERATORS = {"conv2d": nn.Conv2d, "linear": nn.Linear, "batch_norm": BatchNorm}


@dataclass(frozen=True)
class Call:
    """An operator with weights of a layer."""

    module: str
    """Dotted name of the layer."""
    dim: int
    """Axis of its input and output along which channels lie."""
    per_channel: bool
    """Each output channel is made of the input channel at the same place."""
    refusal: str | None
    """Why the layer cannot be narrowed; None: it can."""


def layer_calls(program: torch.export.ExportedProgram, model: nn.Module) -> dict[Node, Call]:
    """Returns the convolutions, linear layers and batch norms of a graph, by their operator."""
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    inside: dict[str, list[Node]] = defaultdict(list)
    for node in program.graph.nodes:
        for path in module_stack(node):
            inside[path].append(node)
    names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    nodes = [node for node in program.graph.nodes if operator_name(node) in _OPERATORS]
    return {node: _call(node, model, names, owners, inside) for node in nodes}


def _call(
    node: Node,
    model: nn.Module,
    names: Mapping[str, str],
    owners: Mapping[int, int],
    inside: Mapping[str, list[Node]],
) -> Call:
    called = (module_stack(node) or [""])[-1]
    weights = [one for one in node.args[1:] if isinstance(one, Node)]
    owned = {names.get(one.name, "").rpartition(".")[0] for one in weights}
    module = model.get_submodule(called)
    refusal = (
        _not_its_own(module, node, weights, {model.get_submodule(name) for name in owned}, names)
        or _shared(module, weights, owners)
        or _more_than_its_operator(node, inside[called])
        or _not_by_channel(module)
    )
    depthwise = isinstance(module, nn.Conv2d) and module.groups > 1
    return Call(
        module=called,
        dim=-1 if operator_name(node) == "linear" else 1,
        per_channel=depthwise or isinstance(module, BatchNorm),
        refusal=refusal,
    )


def _not_its_own(
    module: nn.Module, node: Node, weights: list[Node], owned: set[nn.Module], names: Mapping[str, str]
) -> str | None:
    kind = cast(type, _OPERATORS[operator_name(node)])
    if not isinstance(module, kind):
        return f"is a {type(module).__name__} that reads weights without calling their layer"
    if not all(one.name in names for one in weights):
        return "computes its weights from others"
    if owned - {module} and len(owned) > 1:
        return "reads weights of other modules"
    return None


def _shared(module: nn.Module, weights: list[Node], owners: Mapping[int, int]) -> str | None:
    if any(owners[id(p)] > 1 for p in module.parameters(recurse=False)):
        return "shares its weights with another layer"
    if any(len(one.users) > 1 for one in weights):
        return "is called more than once, or its weights are read elsewhere"
    return None


def _more_than_its_operator(node: Node, inside: list[Node]) -> str | None:
    """A gate stands after the whole module: nothing but zero-keeping operators may follow its own."""
    chain = inside[inside.index(node) :]
    for before, after in pairwise(chain):
        alone = list(before.users) == [after] and len(after.all_input_nodes) == 1
        if not alone or operator_name(after) not in ZERO_TO_ZERO:
            return "computes more than its operator"
    return None


def _not_by_channel(module: nn.Module) -> str | None:
    if not isinstance(module, nn.Conv2d) or module.groups == 1:
        return None
    depthwise = module.groups == module.in_channels == module.out_channels
    return None if depthwise else f"is a convolution of {module.groups} groups"
