"""Writes the operators of a block as ONNX nodes, as torch's exporter writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgecompress.core.types import Block, Op, Size
from edgecompress.latency.onnx_graph import Nodes


@dataclass(frozen=True)
class Map:
    """What a block reads or writes, by name."""

    name: str
    flat: bool = False
    """Tokens (tokens, C) rather than (1, tokens, C); of no meaning for images."""
    transposed: bool = False
    """Whether linear layers keep their weights as torch does, (outputs, inputs)."""


def write_block_ops(nodes: Nodes, block: Block, source: Map, in_size: Size, *, biased: bool = True) -> str:
    """Adds the nodes of a block that reads `source`, and returns the name of its result.

    The result has as many axes as the source. `biased`: the last operator has a bias in any case.
    """
    tokens = in_size[0] * in_size[1]
    first, *others = block.branches
    total = _Chain(nodes, tokens, biased).write(first, source)
    for ops in others:
        total = nodes.node("Add", [total, _Chain(nodes, tokens, False).write(ops, source)])
    return total


@dataclass(frozen=True)
class _Chain:
    nodes: Nodes
    tokens: int
    biased: bool

    def write(self, ops: Sequence[Op], source: Map) -> str:
        current = source
        for position, op in enumerate(ops):
            bias = op.bias or (self.biased and position == len(ops) - 1)
            current = self._op(op, current, bias=bias)
        if current.flat and not source.flat:
            return self._reshaped(current.name, (1, self.tokens, ops[-1].outputs))
        return current.name

    def _op(self, op: Op, source: Map, *, bias: bool) -> Map:
        if op.kind == "linear":
            return self._linear(op, source, bias=bias)
        return Map(self._conv(op, source.name, bias=bias))

    def _conv(self, op: Op, source: str, *, bias: bool) -> str:
        shape = (op.outputs, op.inputs // op.groups, *op.kernel)
        return self.nodes.node(
            "Conv",
            [source, *self.nodes.weights(shape, axis=0, bias=bias)],
            auto_pad="NOTSET",
            kernel_shape=op.kernel,
            strides=op.stride,
            pads=op.padding * 2,
            dilations=op.dilation,
            group=op.groups,
        )

    def _linear(self, op: Op, source: Map, *, bias: bool) -> Map:
        """Adds a product; with a bias tokens are laid flat for it, as simplifiers do."""
        if source.transposed:
            weights = self.nodes.weights((op.outputs, op.inputs), axis=0, bias=bias)
            return Map(self._gemm([source.name, *weights], 1), source.flat, transposed=True)
        weights = self.nodes.weights((op.inputs, op.outputs), axis=1, bias=bias)
        if not bias:
            return Map(self.nodes.node("MatMul", [source.name, *weights]), source.flat)
        flat = source.name if source.flat else self._reshaped(source.name, (self.tokens, op.inputs))
        return Map(self._gemm([flat, *weights], 0), flat=True)

    def _gemm(self, inputs: list[str], transposed: int) -> str:
        return self.nodes.node("Gemm", inputs, alpha=1.0, beta=1.0, transA=0, transB=transposed)

    def _reshaped(self, name: str, shape: tuple[int, ...]) -> str:
        return self.nodes.node("Reshape", [name, self.nodes.constant(np.array(shape, np.int64))])
