"""What a TFLite file holds besides its operators: how large its weights are and what it computes in."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edgecompress.core.counts import Dtype
from edgecompress.devices.litert_graph import count_operators, litert_module
from edgecompress.errors import ExportError

PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL")
"""Operators that multiply matrices: what they give out tells what the network computes in."""
DAMAGED = (struct.error, IndexError, ValueError, TypeError, AttributeError, OverflowError)
"""What reading a flatbuffer that points outside itself ends in."""


@dataclass(frozen=True)
class Contents:
    """A file without its numbers."""

    weight_bytes: int
    operators: int
    dtype: Dtype
    """What most of its products are computed in; float16 files compute in float32."""


def read_contents(file: Path) -> Contents:
    """Reads a file without running it.

    Raises:
        ExportError: the file is missing, damaged or not TFLite.
        MissingPackage: ai-edge-litert is not installed.
    """
    operators = sum(count_operators(file).values())
    schema = litert_module("ai_edge_litert.schema_py_generated")
    try:
        model = schema.Model.GetRootAs(file.read_bytes(), 0)
        return Contents(_weight_bytes(model), operators, _dtype(schema, model))
    except DAMAGED:
        raise ExportError(f"{file}: damaged or cut off; export it again") from None


def _graphs(model: Any) -> Iterator[Any]:  # noqa: ANN401  generated classes without types
    return (model.Subgraphs(i) for i in range(model.SubgraphsLength()))


def _weight_bytes(model: Any) -> int:  # noqa: ANN401
    """Adds up the buffers tensors have; others hold notes about the file."""
    used = {graph.Tensors(i).Buffer() for graph in _graphs(model) for i in range(graph.TensorsLength())}
    buffers = [model.Buffers(index) for index in used]
    return sum(one.DataLength() or one.Size() for one in buffers)  # Size: those kept behind the file's tables


def _dtype(schema: ModuleType, model: Any) -> Dtype:  # noqa: ANN401
    codes = {getattr(schema.BuiltinOperator, name) for name in PRODUCTS}
    kinds = [kind for graph in _graphs(model) for kind in _kinds_of_products(model, graph, codes)]
    kinds = kinds or [graph.Tensors(graph.Inputs(0)).Type() for graph in _graphs(model)][:1]
    small = [kind in (schema.TensorType.INT8, schema.TensorType.UINT8) for kind in kinds]
    return "int8" if 2 * sum(small) > len(small) else "float32"


def _kinds_of_products(model: Any, graph: Any, codes: set[int]) -> Iterator[int]:  # noqa: ANN401
    for index in range(graph.OperatorsLength()):
        operator = graph.Operators(index)
        code = model.OperatorCodes(operator.OpcodeIndex())
        if max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) in codes:
            yield graph.Tensors(operator.Outputs(0)).Type()
