"""Finds the layers of an exported graph that can be narrowed, and says why others cannot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.fx import Node

from edgecompress.nets.channel_steps import keeps_zero, module_stack, operator_name

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d

_OPERATORS: dict[str, tuple[type[nn.Module], ...]] = {
    "conv2d": (nn.Conv2d,),
    "linear": (nn.Linear,),
    "batch_norm": (nn.BatchNorm1d, nn.BatchNorm2d),
}
_KINDS = tuple(kind for kinds in _OPERATORS.values() for kind in kinds)


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
    owners = Counter(id(tensor) for module in model.modules() for tensor in _tensors(module))
    inside: dict[str, list[Node]] = defaultdict(list)
    for node in program.graph.nodes:
        for path in module_stack(node):
            inside[path].append(node)
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    nodes = [node for node in program.graph.nodes if operator_name(node) in _OPERATORS]
    return {node: _call(node, model, names, owners, inside) for node in nodes}


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _call(
    node: Node,
    model: nn.Module,
    names: Mapping[str, str],
    owners: Mapping[int, int],
    inside: Mapping[str, list[Node]],
) -> Call:
    called = (module_stack(node) or [""])[-1]
    modules = dict(model.named_modules(remove_duplicate=False))
    weights = [one for one in node.args[1:] if isinstance(one, Node)]
    owned = [names[one.name].rpartition(".")[0] for one in weights if one.name in names]
    name = called if isinstance(modules.get(called), _KINDS) else next(iter(owned), called)
    module = modules.get(name)
    refusal = (
        _not_called(module, operator_name(node), called=name == called)
        or _not_its_own(weights, names)
        or _shared(modules[name], weights, owners)
        or _of_others(modules[name], [modules[one] for one in owned])
        or _more_than_its_operator(node, inside[called])
        or _not_by_channel(modules[name])
    )
    depthwise = isinstance(module, nn.Conv2d) and module.groups > 1
    dim = {"conv2d": -3, "linear": -1}.get(operator_name(node), 1)
    return Call(name, dim, per_channel=depthwise or isinstance(module, BatchNorm), refusal=refusal)


def _not_called(module: nn.Module | None, name: str, *, called: bool) -> str | None:
    if not isinstance(module, _OPERATORS[name]):
        kind = "no module of the network" if module is None else f"a {type(module).__name__}"
        return f"is {kind} and reads weights itself"
    return None if called else "is not called: its weights are read from outside"


def _not_its_own(weights: list[Node], names: Mapping[str, str]) -> str | None:
    known = all(one.name in names for one in weights)
    return None if known else "computes its weights from others"


def _shared(module: nn.Module, weights: list[Node], owners: Mapping[int, int]) -> str | None:
    if any(owners[id(tensor)] > 1 for tensor in _tensors(module)):
        return "shares its weights with another layer"
    if any(len(one.users) > 1 for one in weights):
        return "is called more than once, or its weights are also read from outside"
    return None


def _of_others(module: nn.Module, owners: list[nn.Module]) -> str | None:
    return None if all(owner is module for owner in owners) else "reads weights of other modules"


def _more_than_its_operator(node: Node, inside: list[Node]) -> str | None:
    """A gate stands after the whole module: nothing but zero-keeping operators may follow its own."""
    chain = inside[inside.index(node) :]
    for before, after in pairwise(chain):
        alone = list(before.users) == [after] and len(after.all_input_nodes) == 1
        if not alone or not keeps_zero(after):
            return "computes more than its operator"
    return None


def _not_by_channel(module: nn.Module) -> str | None:
    if not isinstance(module, nn.Conv2d) or module.groups == 1:
        return None
    depthwise = module.groups == module.in_channels == module.out_channels
    return None if depthwise else f"is a convolution of {module.groups} groups"
