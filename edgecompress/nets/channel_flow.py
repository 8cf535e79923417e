"""Follows every channel through a network: where it is made, changed and read, and what makes it zero.

A layer that makes channels gives each a number. The graph of the network is run on these numbers in place
of values: what moves values about (views, slices, concatenations, shuffles) moves numbers, what computes
value by value keeps them, and what mixes channels in a way not known here fixes them, with the reason. Beside
the numbers runs what is known of zeros: the layers whose outputs, once zero, make this value zero as well.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fx import Node

from edgecompress.core.quiet import quiet
from edgecompress.errors import ModelError
from edgecompress.nets.channel_layers import Call, layer_calls
from edgecompress.nets.channel_numbers import Flow, along, spread
from edgecompress.nets.channel_rules import MAKES_CONSTANTS, rule_for
from edgecompress.nets.channel_steps import Channels, Place, Step, Value, operator_name
from edgecompress.nets.modules import zero_image


def follow_channels(model: nn.Module, input_shape: tuple[int, int, int]) -> Channels:
    """Returns what becomes of all channels of a network in eval mode.

    Raises:
        ModelError: the network does not run on such an image, or branches on the values of it.
    """
    program = _exported(model, zero_image(model, input_shape))
    calls, images = layer_calls(program, model), program.graph_signature.user_inputs
    found, values = Channels(), dict[Node, Value]()
    for node in program.graph.nodes:
        step = Step(node, values, found)
        if node.op == "placeholder":
            image = node.name in images
            values[node] = found.fixed_flow(step.shape, "is the network's input") if image else None
        elif node.op == "output":
            step.fix_inputs("makes the network's output")
        else:
            values[node] = _made(step, calls.get(node))
    return found


def _exported(network: nn.Module, image: Tensor) -> torch.export.ExportedProgram:
    try:
        with quiet():
            return torch.export.export(network, (image,))
    except RuntimeError as error:  # what all errors of torch.export derive from
        why = str(error).strip().splitlines()[0]
        shape = tuple(image.shape[1:])
        raise ModelError(f"the channels of a {shape} image cannot be followed: {why}") from None


def _made(step: Step, call: Call | None) -> Value:
    if not step.inputs() or operator_name(step.node) in MAKES_CONSTANTS:
        return None
    if call is not None:
        return _made_by_layer(step, call)
    rule = rule_for(step.node)
    made = None if rule is None else rule(step)
    return step.refuse(f"goes through {operator_name(step.node)}{step.where()}") if made is None else made


def _made_by_layer(step: Step, call: Call) -> Value:
    """A layer that reads and makes channels, or changes each on its own."""
    value = step.values.get(step.node.all_input_nodes[0])
    read = along(value, call.dim) if isinstance(value, Flow) else None
    refusal = call.refusal or ("reads channels that lie along several axes" if read is None else None)
    if refusal is not None or read is None:
        step.found.refused.setdefault(call.module, f"{refusal}")
        return step.refuse(f"meets {call.module}, which {refusal}")
    channels = read.channels
    if call.per_channel:
        step.found.places.append(Place(call.module, "channels", channels))
    else:
        step.found.reads.append((call.module, read))
        channels = step.found.new(step.shape[call.dim])
        step.found.places.append(Place(call.module, "inputs", read.channels))
        step.found.places.append(Place(call.module, "outputs", channels))
    zero = torch.tensor(step.found.condition(frozenset([call.module])))
    return Flow(spread(channels, call.dim, step.shape), zero.expand(step.shape))
