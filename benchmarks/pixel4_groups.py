"""Grouped convolutions as TFLite files of 2022 had them, for networks that were timed in that form.

That is a padding, a split, one convolution per group and a concatenation; the batch norm comes after that and
stays. Runtimes have kernels for grouped convolutions since, which our exporter uses.
"""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from edgecompress.export.tflite_graph import add_tensor, constant, fill_, kind, operator_code
from edgecompress.nets.folding import exchange_

CHANNELS = 3
"""Their axis in NHWC."""
INT32 = 2


class ConvolutionPerGroup(nn.Module):
    """A grouped convolution as a padding, a split, a convolution per group and a concatenation."""

    def __init__(self, grouped: nn.Conv2d) -> None:
        super().__init__()
        height, width = cast(tuple[int, int], grouped.padding)
        self.pad = nn.ZeroPad2d((width, width, height, height)) if height + width else nn.Identity()
        self.inputs = grouped.in_channels // grouped.groups
        self.parts = nn.ModuleList(_part(grouped, number) for number in range(grouped.groups))

    def forward(self, x: Tensor) -> Tensor:
        """Returns what the grouped convolution returns."""
        parts = zip(self.parts, torch.split(self.pad(x), self.inputs, dim=1), strict=True)
        return torch.cat([part(one) for part, one in parts], dim=1)


@torch.no_grad()
def _part(grouped: nn.Conv2d, number: int) -> nn.Conv2d:
    count = grouped.out_channels // grouped.groups
    part = nn.Conv2d(
        grouped.in_channels // grouped.groups,
        count,
        cast(tuple[int, int], grouped.kernel_size),
        cast(tuple[int, int], grouped.stride),
        dilation=cast(tuple[int, int], grouped.dilation),
        bias=grouped.bias is not None,
    )
    mine = slice(number * count, (number + 1) * count)
    part.weight.copy_(grouped.weight[mine])
    if part.bias is not None and grouped.bias is not None:
        part.bias.copy_(grouped.bias[mine])
    return part


def split_groups_(network: nn.Module) -> None:
    """Replaces grouped convolutions that are not depthwise."""
    grouped = [
        module
        for module in network.modules()
        if isinstance(module, nn.Conv2d) and 1 < module.groups < module.in_channels
    ]
    exchange_(network, {module: ConvolutionPerGroup(module).eval() for module in grouped})


def join_slices(file: Path) -> int:
    """Writes slices of all channels of one tensor as one split, and returns how many splits there are."""
    tools, schema = (
        import_module(f"ai_edge_litert.{name}") for name in ("tools.flatbuffer_utils", "schema_py_generated")
    )
    model = tools.read_model(str(file))
    by_source: dict[int, list[Any]] = defaultdict(list)
    for operator in model.subgraphs[0].operators:
        if kind(model, operator) == schema.BuiltinOperator.SLICE:
            by_source[int(operator.inputs[0])].append(operator)
    joined = [source for source, slices in by_source.items() if _is_split(model, source, slices)]
    if joined:
        split, axis = operator_code(model, schema, schema.BuiltinOperator.SPLIT), _axis(model)
        for source in joined:
            _join_(model, schema, by_source[source], split, axis)
        tools.write_model(model, str(file))
    return len(joined)


def _is_split(model: Any, source: int, slices: list[Any]) -> bool:  # noqa: ANN401
    """Tells whether slices, in their order, are equal shares of the channels."""
    shape = [int(each) for each in model.subgraphs[0].tensors[source].shape]
    if len(shape) != CHANNELS + 1 or shape[CHANNELS] % len(slices):
        return False
    share = shape[CHANNELS] // len(slices)
    for number, one in enumerate(slices):
        begin, size = (constant(model, place).tolist() for place in one.inputs[1:3])
        if begin != [0, 0, 0, number * share] or size != [*shape[:CHANNELS], share]:
            return False
    return True


def _axis(model: Any) -> int:  # noqa: ANN401
    """Adds the constant that says where to split."""
    index = add_tensor(model, model.subgraphs[0].tensors[0], b"axis of splits", [])
    tensor = model.subgraphs[0].tensors[index]
    tensor.type, tensor.quantization = INT32, None
    fill_(model, index, np.array(CHANNELS, dtype=np.int32))
    return index


def _join_(model: Any, schema: Any, slices: list[Any], split: int, axis: int) -> None:  # noqa: ANN401
    graph, first = model.subgraphs[0], slices[0]
    first.opcodeIndex, first.inputs = split, [axis, first.inputs[0]]
    first.outputs = [int(one.outputs[0]) for one in slices]
    first.builtinOptionsType = schema.BuiltinOptions.SplitOptions
    first.builtinOptions = schema.SplitOptionsT()
    first.builtinOptions.numSplits = len(slices)
    graph.operators = [one for one in graph.operators if not any(one is gone for gone in slices[1:])]
