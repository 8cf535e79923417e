"""Writes the operators of a block as ONNX nodes, as torch's exporter writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgecompress.core.types import Block, Op
from edgecompress.latency.onnx_graph import Nodes

WEIGHTED = ("conv2d", "linear")
"""Kinds of operators between which no bias stands: it would be part of the last one's."""


@dataclass(frozen=True)
class Map:
    """What a block reads or writes, by name."""

    name: str
    flat: bool = False
    """Tokens (tokens, C) rather than (1, tokens, C); of no meaning for images."""
    transposed: bool = False
    """Whether linear layers keep their weights as torch does, (outputs, inputs)."""


def write_block_ops(
    nodes: Nodes, block: Block, source: Map, tokens: int, *, windows: int = 1, biased: bool = True
) -> str:
    """Adds the nodes of a block that reads `source`, and returns the name of its result.

    The result has as many axes as the source. `tokens` are the pixels of an image, or of
    all `windows`. `biased`: the last operator has a bias.
    """
    first, *others = block.branches
    total = _Chain(nodes, tokens, windows, biased).write(first, source)
    for ops in others:
        total = nodes.node("Add", [total, _Chain(nodes, tokens, windows, False).write(ops, source)])
    return total


@dataclass(frozen=True)
class _Chain:
    nodes: Nodes
    tokens: int
    windows: int
    biased: bool

    def write(self, ops: Sequence[Op], source: Map) -> str:
        current = source
        for position, op in enumerate(ops):
            last = position == len(ops) - 1
            bias = self.biased if last else ops[position + 1].kind not in WEIGHTED
            current = self._op(op, current, bias=bias, last=last)
        if current.flat and not source.flat:
            return self._reshaped(current.name, (1, self.tokens, ops[-1].outputs))
        return current.name

    def _op(self, op: Op, source: Map, *, bias: bool, last: bool) -> Map:
        if op.kind == "linear":
            return self._linear(op, source, bias=bias)
        if op.kind == "gelu":
            return replace(source, name=self.nodes.node("Gelu", [source.name], approximate="none"))
        if op.kind == "attention":
            return self._attention(op, source, flat=source.flat if last else True)
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

    def _attention(self, op: Op, source: Map, *, flat: bool) -> Map:
        """Adds `nets.attention.attend`; its result is laid flat where a product with a bias follows."""
        heads, each = op.groups, op.outputs // op.groups
        joined = source.name
        if source.flat:
            joined = self._reshaped(joined, (1, self.tokens, op.inputs))
        parts = self.nodes.split("Split", [joined], 3, axis=2, num_outputs=3)
        apart = (self.windows, self.tokens // self.windows, heads, each)
        q, k, v = (self._reshaped(part, apart, allowzero=1) for part in parts)
        q = self.nodes.node("Mul", [self._transposed(q, (0, 2, 1, 3)), self.nodes.number(each**-0.5)])
        scores = self.nodes.node("MatMul", [q, self._transposed(k, (0, 2, 3, 1))])
        if self.windows > 1:  # a bias of the positions within a window
            bias = self.nodes.number(1.0, shape=(1, heads, apart[1], apart[1]))
            scores = self.nodes.node("Add", [scores, bias])
        weights = self.nodes.node("Softmax", [scores], axis=-1)
        mixed = self.nodes.node("MatMul", [weights, self._transposed(v, (0, 2, 1, 3))])
        shape = (self.tokens, op.outputs) if flat else (1, self.tokens, op.outputs)
        result = self._reshaped(self._transposed(mixed, (0, 2, 1, 3)), shape)
        return replace(source, name=result, flat=flat)

    def _transposed(self, name: str, order: tuple[int, ...]) -> str:
        return self.nodes.node("Transpose", [name], perm=order)

    def _gemm(self, inputs: list[str], transposed: int) -> str:
        return self.nodes.node("Gemm", inputs, alpha=1.0, beta=1.0, transA=0, transB=transposed)

    def _reshaped(self, name: str, shape: tuple[int, ...], **attributes: object) -> str:
        return self.nodes.node(
            "Reshape", [name, self.nodes.constant(np.array(shape, np.int64))], **attributes
        )
