"""What operators between layers do to channels: one rule each; an operator without a rule fixes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_map

from edgecompress.nets.channel_numbers import (
    ALWAYS,
    NEVER,
    Flow,
    beside,
    distinct,
    is_constant,
    resized,
    stored_once,
)
from edgecompress.nets.channel_steps import LIMITS, ZERO_TO_ZERO, Step, Value, keeps_zero, operator_name

Rule = Callable[[Step], Value]
"""Returns the numbers of what a step makes; None: the rule does not know this case."""

_ZERO_TO_ELSE = "sigmoid hardsigmoid softplus log_sigmoid exp ones_like"
_POOLS = (
    "max_pool2d avg_pool2d adaptive_avg_pool2d lp_pool2d upsample_nearest2d upsample_bilinear2d "
    "upsample_bicubic2d"
)
_VIEWS = ("view", "_unsafe_view")
_MOVES = (
    "view _unsafe_view reshape flatten unflatten permute transpose movedim swapaxes squeeze unsqueeze "
    "getitem cat stack expand expand_as repeat flip pixel_unshuffle"
)
_PARTS = "slice select narrow chunk split split_with_sizes unbind"
MAKES_CONSTANTS = frozenset(("new_ones", "new_zeros", "new_full", "new_empty"))
"""Operators that read the type of a tensor, not its values."""


def rule_for(node: Node) -> Rule | None:
    """Returns the rule for an operator; None: there is none."""
    return _RULES.get(operator_name(node))


def _keep(step: Step) -> Value:
    return step.only_input()


def _lose_zero(step: Step) -> Value:
    flow = step.only_input()
    return flow and flow.never_zero()


def _zeros(step: Step) -> Value:
    flow = step.only_input()
    return flow and Flow(flow.channels, torch.tensor(ALWAYS).expand(flow.channels.shape))


def _prelu(step: Step) -> Value:
    """With one slope for all channels."""
    x, slope = step.node.all_input_nodes
    flow = step.values.get(x)
    return flow if slope.meta["val"].numel() == 1 and step.values.get(slope) is None else None


def _limit(step: Step) -> Value:
    return _keep(step) if keeps_zero(step.node) else _lose_zero(step)


def _pool(step: Step) -> Value:
    """Over the last two axes, channel by channel; zero padding counts as zeros, or not at all."""
    flow = step.only_input()
    made = step.node.meta["val"]
    if flow is None or not isinstance(made, Tensor) or not (is_constant(flow, -1) and is_constant(flow, -2)):
        return None
    return resized(resized(flow, -1, made.shape[-1]), -2, made.shape[-2])


def _reduce(step: Step) -> Value:
    """Over axes along which channels stay the same."""
    flow, dims = step.only_input(), step.option("dim")
    if flow is None or not dims or not all(is_constant(flow, dim) for dim in dims):
        return None
    keepdim = step.option("keepdim", False)
    return Flow(*(part.amax(dims, keepdim=keepdim) for part in (flow.channels, flow.zero)))


def _pad(step: Step) -> Value:
    """Zeros around a map belong to its channels; zeros beside its channels are channels that must stay."""
    flow, sides = step.only_input(), list(step.option("pad"))
    constant = step.option("mode", "constant") == "constant"
    if flow is None:
        return None
    zeros = not constant or not step.option("value")
    flow = flow if zeros else flow.never_zero()
    for index, pair in enumerate(zip(sides[::2], sides[1::2], strict=True)):
        dim = flow.channels.ndim - 1 - index
        if is_constant(flow, dim):
            flow = resized(flow, dim, flow.channels.shape[dim] + sum(pair))
        elif min(pair) < 0 or not constant:
            return None
        elif max(pair) > 0:
            filled = step.found.new(1)
            step.found.fix(filled, f"is summed with padded channels{step.where()}")
            flow = beside(flow, dim, pair, (int(filled), ALWAYS if zeros else NEVER))
    return flow


def _move(step: Step) -> Value:
    """Values go elsewhere; so do their numbers, by the same operator.

    Channels must stay along one axis: what splits them in several counts them, and would split fewer of them
    in other places.
    """
    if any(step.values.get(node) is None for node in step.node.all_input_nodes):
        return None
    channels, zero = _moved(step, "channels"), _moved(step, "zero")
    if not isinstance(channels, Tensor):
        return [stored_once(Flow(*parts)) for parts in zip(channels, zero, strict=True)]
    flow = stored_once(Flow(channels, zero))
    axes = [dim for dim in range(flow.channels.ndim) if not is_constant(flow, dim)]
    return flow if len(axes) < 2 else None


def _take_part(step: Step) -> Value:
    """Parts of an axis along which nothing changes; others would begin elsewhere once channels are gone."""
    flow, dim, made = step.only_input(), step.option("dim", 0), step.node.meta["val"]
    if flow is None:
        return None
    whole = isinstance(made, Tensor) and made.shape == flow.channels.shape
    return _move(step) if whole or is_constant(flow, dim) else None


def _moved(step: Step, part: Literal["channels", "zero"]) -> Any:  # noqa: ANN401  # a tensor or several
    def numbers(argument: object) -> object:
        value = step.values[argument] if isinstance(argument, Node) else None
        if isinstance(value, list):
            return [getattr(flow, part) for flow in value]
        return argument if value is None else getattr(value, part)[...]  # `squeeze_` changes what it gets

    # numbers stored once cannot be seen in every shape their values can
    function: Any = torch.ops.aten.reshape if operator_name(step.node) in _VIEWS else step.node.target
    return function(*tree_map(numbers, step.node.args), **tree_map(numbers, step.node.kwargs))


def _add(step: Step) -> Value:
    """The channels of both go together; a value is zero where both are."""
    flows = step.inputs()
    if len(flows) != 2:
        return _with_weights(step, zero_stays=0 in step.node.args)  # sums in a loop begin with 0
    if (wide := _over_which_spread(step)) is not None:
        return wide.never_zero()
    joined = _joined(step, lambda a, b: _both_zero(step, a, b))
    if not _sums_branches(step.node):
        step.found.summed.append(distinct(joined.channels)[0].flatten())
    return joined


def _sums_branches(node: Node) -> bool:
    kinds = [str(kind) for _, kind in node.meta.get("nn_module_stack", {}).values()]
    return bool(kinds) and kinds[-1] == "edgecompress.nets.modules.Sum"


def _multiply(step: Step) -> Value:
    """The channels of both go together; a value is zero where one of them is."""
    if len(step.inputs()) != 2:
        return _with_weights(step, zero_stays=True)
    if (wide := _over_which_spread(step)) is not None:
        return wide
    return _joined(step, lambda a, b: torch.where(a == NEVER, b, a))


def _divide(step: Step) -> Value:
    """By weights only: a channel that is divided by may not become zero."""
    divided = step.values.get(step.node.all_input_nodes[0]) is not None
    by_weights = len(step.inputs()) == 1 and isinstance(step.node.args[0], Node)
    return _with_weights(step, zero_stays=True) if divided and by_weights else None


def _over_which_spread(step: Step) -> Flow | None:
    """Returns the input over whose channels one channel of the other is spread; that one must stay."""
    flows = step.inputs()
    for wide, narrow in (flows, flows[::-1]):
        sizes = [1] * (len(step.shape) - narrow.channels.ndim) + list(narrow.channels.shape)
        if wide.channels.shape == step.shape and any(
            size == 1 and not is_constant(wide, dim) for dim, size in enumerate(sizes)
        ):
            step.found.fix(narrow.channels, f"is spread over other channels{step.where()}")
            return wide
    return None


def _joined(step: Step, zero: Callable[[Tensor, Tensor], Tensor]) -> Flow:
    first, second = step.inputs()
    channels = distinct(first.channels.expand(step.shape), second.channels.expand(step.shape))
    step.found.same.append((channels[0].flatten(), channels[1].flatten()))
    zeros = distinct(first.zero.expand(step.shape), second.zero.expand(step.shape))
    return Flow(channels[0].expand(step.shape), zero(*zeros).expand(step.shape))


def _both_zero(step: Step, a: Tensor, b: Tensor) -> Tensor:
    pairs = list(zip(a.flatten().tolist(), b.flatten().tolist(), strict=True))
    known = step.found.conditions
    both = {
        (one, other): NEVER if NEVER in (one, other) else step.found.condition(known[one] | known[other])
        for one, other in dict.fromkeys(pairs)
    }
    return torch.tensor([both[pair] for pair in pairs]).reshape(a.shape)


def _with_weights(step: Step, *, zero_stays: bool) -> Value:
    """With a number, or with weights that are the same for all channels: others would have to shrink too."""
    flow = step.inputs()[0]
    if flow.channels.shape != step.shape or len(step.inputs()) != 1:
        return None
    for node in step.node.all_input_nodes:
        if step.values.get(node) is None and _lies_along_channels(node.meta["val"].shape, flow):
            return step.refuse(f"meets {node.name}{step.where()}")
    return flow if zero_stays else flow.never_zero()


def _lies_along_channels(shape: torch.Size, flow: Flow) -> bool:
    return any(size > 1 and not is_constant(flow, -1 - dim) for dim, size in enumerate(reversed(shape)))


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ZERO_TO_ZERO, _keep),
    **dict.fromkeys(_ZERO_TO_ELSE.split(), _lose_zero),
    **dict.fromkeys(_POOLS.split(), _pool),
    **dict.fromkeys(_MOVES.split(), _move),
    **dict.fromkeys(_PARTS.split(), _take_part),
    **dict.fromkeys(LIMITS, _limit),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **dict.fromkeys(("add", "sub"), _add),
    **dict.fromkeys(("mean", "sum", "amax", "amin"), _reduce),
    "prelu": _prelu,
    "zeros_like": _zeros,
    "mul": _multiply,
    "div": _divide,
}
