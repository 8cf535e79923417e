"""What is noted while channels are followed through the operators of a network, and one step of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from edgecompress.core.types import Axis
from edgecompress.nets.channel_numbers import Flow, distinct

_ZERO_TO_ZERO = (
    "relu relu6 hardswish silu gelu leaky_relu elu celu selu mish tanh softsign tanhshrink hardshrink "
    "softshrink dropout feature_dropout contiguous clone detach alias to abs neg square sqrt"
)
ZERO_TO_ZERO = frozenset(_ZERO_TO_ZERO.split())
"""Operators that compute value by value, in eval mode, and make zero of zero."""
LIMITS = frozenset(("clamp", "hardtanh"))
"""Operators that keep values within limits, and zero if it is within them."""


@dataclass(frozen=True)
class Place:
    """One axis of a module, and the number of the channel at each of its entries."""

    module: str
    axis: Axis
    channels: Tensor


@dataclass
class Channels:
    """What a walk through a network has found."""

    places: list[Place] = field(default_factory=list)
    """In forward order."""
    same: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Channels that can only go together, pair by pair."""
    fixed: list[tuple[Tensor, str]] = field(default_factory=list)
    """Channels that must stay, with the reason."""
    reads: list[tuple[str, Flow]] = field(default_factory=list)
    """Layers that mix channels, and what they read."""
    summed: list[Tensor] = field(default_factory=list)
    """Channels of sums; those of low-rank branches do not count."""
    refused: dict[str, str] = field(default_factory=dict)
    """Layers that cannot be narrowed, each with the reason."""
    conditions: list[frozenset[str]] = field(default_factory=lambda: [frozenset(), frozenset()])
    """Modules whose outputs must all be zero; the first two are `NEVER` and `ALWAYS`."""
    count: int = 0
    """Of channels so far."""

    def new(self, count: int) -> Tensor:
        """Returns the numbers of new channels."""
        self.count += count
        return torch.arange(self.count - count, self.count)

    def condition(self, modules: frozenset[str]) -> int:
        """Returns the number of a condition, which may be a new one."""
        if modules not in self.conditions[1:]:
            self.conditions.append(modules)
        return self.conditions.index(modules, 1)

    def fix(self, channels: Tensor, why: str) -> None:
        """Notes that channels must stay."""
        self.fixed.append((distinct(channels)[0].flatten(), why))

    def fixed_flow(self, shape: Sequence[int], why: str) -> Flow:
        """Returns numbers for a tensor that must stay as it is."""
        channel = self.new(1)
        self.fix(channel, why)
        return Flow(channel.expand(shape), channel.expand(shape)).never_zero()


Value = Flow | list[Flow] | None
"""Numbers for the tensor or tensors a node makes; None: it is made of weights and constants only."""


@dataclass(frozen=True)
class Step:
    """One operator and what flows into it."""

    node: Node
    values: dict[Node, Value]
    """Of all nodes before."""
    found: Channels

    @property
    def shape(self) -> torch.Size:
        """Returns the shape of what the operator makes."""
        return torch.Size(self.node.meta["val"].shape)

    def inputs(self) -> list[Flow]:
        """Returns the numbers of all inputs that depend on the image."""
        values = [self.values.get(node) for node in self.node.all_input_nodes]
        return [flow for value in values for flow in (value if isinstance(value, list) else [value]) if flow]

    def only_input(self) -> Flow | None:
        """Returns the numbers of the only tensor the operator reads; None: it reads several."""
        value = self.values.get(self.node.all_input_nodes[0])
        return value if isinstance(value, Flow) and len(self.node.all_input_nodes) == 1 else None

    def option(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # whatever operators take
        """Returns an argument by its name in the operator's schema."""
        return option(self.node, name, default)

    def where(self) -> str:
        """Returns in which module this is, as the end of a sentence."""
        stack = module_stack(self.node)
        return f" in {stack[-1]}" if stack and stack[-1] else ""

    def fix_inputs(self, why: str) -> None:
        """Notes that all that is read must stay."""
        for flow in self.inputs():
            self.found.fix(flow.channels, why)

    def refuse(self, why: str) -> Value:
        """Fixes all that is read and all that is made."""
        self.fix_inputs(why)
        made = self.node.meta.get("val")
        if isinstance(made, Tensor):
            return self.found.fixed_flow(made.shape, why)
        return [self.found.fixed_flow(one.shape, why) for one in made or () if isinstance(one, Tensor)]


def operator_name(node: Node) -> str:
    """Returns the name of an operator without its variant: `relu` for `aten.relu_.default`."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    return str(schema.name).rpartition("::")[2].rstrip("_")


def option(node: Node, name: str, default: Any = None) -> Any:  # noqa: ANN401  # whatever operators take
    """Returns an argument of an operator by its name in the schema."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}.get(name, default)


def keeps_zero(node: Node) -> bool:
    """Tells whether an operator computes value by value and makes zero of zero."""
    name = operator_name(node)
    if name in ZERO_TO_ZERO:
        return True
    if name not in LIMITS:
        return False
    tanh = name == "hardtanh"
    low = option(node, "min_val" if tanh else "min", -1 if tanh else None)
    high = option(node, "max_val" if tanh else "max", 1 if tanh else None)
    numbers = not isinstance(low, Node) and not isinstance(high, Node)
    return numbers and (low is None or low <= 0) and (high is None or high >= 0)


def module_stack(node: Node) -> list[str]:
    """Returns the dotted names of the modules that were running, outermost first."""
    entries = node.meta.get("nn_module_stack", {}).values()
    return [str(path).partition("@")[0] for path, _ in entries]  # a second call is marked `name@1`
