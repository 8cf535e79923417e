"""Writes one block as an ONNX file of its own, with the operators our exporter gives it in a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgecompress.core.costs import chain_out_size
from edgecompress.core.store import replacing
from edgecompress.core.types import Block, Op, Size
from edgecompress.latency.onnx_chain import Map, write_block_ops
from edgecompress.latency.onnx_graph import Nodes, onnx

OPSET, IR_VERSION = 20, 10
"""Those of the files we export."""


def write_block(block: Block, in_size: Size, path: Path, dtype: str = "float32", *, seed: int = 0) -> None:
    """Writes a block for one input: (1, C, H, W) for convolutions, (1, tokens, C) for linear ones.

    One token is (1, C), as a classifier gets it. With `dtype` "int8" weights and maps are int8, the file's
    input and output too.

    Raises:
        MissingPackage: onnx is not installed.
        ArtefactError: the file cannot be written.
    """
    int8 = dtype == "int8"
    nodes, ops = Nodes("block", int8=int8, seed=seed), block.branches[0]
    one_token = ops[0].kind != "conv2d" and in_size == (1, 1)
    source = nodes.dequantised("image") if int8 else "image"
    entrance = Map(source, flat=one_token, transposed=one_token)
    windows = 1 if ops[0].kind == "conv2d" else in_size[1]
    result = write_block_ops(nodes, block, entrance, in_size[0] * in_size[1], windows=windows)
    result = nodes.quantised(result) if int8 else result
    shapes = _shape(ops[0], in_size, ops[0].inputs), _shape(ops[-1], chain_out_size(ops, in_size))
    content = _model(nodes, result, shapes, int8=int8)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _shape(op: Op, size: Size, channels: int | None = None) -> tuple[int, ...]:
    channels = channels or op.outputs
    if op.kind == "conv2d":
        return (1, channels, *size)
    return (1, channels) if size == (1, 1) else (1, size[0] * size[1], channels)


def _model(nodes: Nodes, result: str, shapes: Sequence[Sequence[int]], *, int8: bool) -> bytes:
    helper, types = onnx().helper, onnx().TensorProto
    kind = types.INT8 if int8 else types.FLOAT
    ends = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, shape in zip(("image", result), shapes, strict=True)
    ]
    graph = helper.make_graph(nodes.nodes, "block", ends[:1], ends[1:], nodes.constants)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    content: bytes = model.SerializeToString(deterministic=True)
    return content
