"""What an operator costs, from its shapes alone. The only place that knows these formulas."""

from __future__ import annotations

from edgecompress.core.types import Block, Op, Size

BYTES_PER_WEIGHT = 4
"""float32."""


def out_size(op: Op, in_size: Size) -> Size:
    """Returns the height and width of the operator's output map."""
    if op.kind != "conv2d":
        return in_size
    return _conv_extent(op, in_size, 0), _conv_extent(op, in_size, 1)


def _conv_extent(op: Op, in_size: Size, axis: int) -> int:
    reach = op.dilation[axis] * (op.kernel[axis] - 1) + 1
    return (in_size[axis] + 2 * op.padding[axis] - reach) // op.stride[axis] + 1


def op_params(op: Op) -> int:
    """Returns the number of weights, bias included."""
    if op.kind not in ("conv2d", "linear"):
        return 0
    kernel = op.kernel[0] * op.kernel[1]
    return op.outputs * (op.inputs // op.groups) * kernel + (op.outputs if op.bias else 0)


def op_macs(op: Op, in_size: Size) -> int:
    """Returns the multiply-accumulates on one input of that size; the bias is not counted.

    The size of an input of attention is (tokens, windows): tokens of one window mix, those of two do not.
    """
    height, width = out_size(op, in_size)
    if op.kind == "attention":  # every token with every other, for the scores and for their values
        tokens, windows = in_size
        return 2 * windows * tokens**2 * op.outputs
    if op.kind == "gelu":
        return 0
    return height * width * (op_params(op) - (op.outputs if op.bias else 0))


def block_params(block: Block) -> int:
    """Returns the number of weights in all branches."""
    return sum(op_params(op) for branch in block.branches for op in branch)


def block_macs(block: Block, in_size: Size) -> int:
    """Returns the multiply-accumulates of all branches; adding their outputs is not counted."""
    return sum(chain_macs(branch, in_size) for branch in block.branches)


def chain_macs(ops: tuple[Op, ...], in_size: Size) -> int:
    """Returns the multiply-accumulates of operators run one after the other."""
    total, size = 0, in_size
    for op in ops:
        total += op_macs(op, size)
        size = out_size(op, size)
    return total


def chain_out_size(ops: tuple[Op, ...], in_size: Size) -> Size:
    """Returns the size of the map the last operator writes."""
    size = in_size
    for op in ops:
        size = out_size(op, size)
    return size
