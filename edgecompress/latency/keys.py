"""What a device executes, as text: the key of a block, and of the curve of blocks that differ in one width.

    conv 64>16 1x3 p0x1 @32x32 > conv 16>64 3x1 p1x0            a low-rank pair of rank 16
    conv 64>* 1x3 p0x1 @32x32 > conv *>64 3x1 p1x0              its curve

Biases are left out: every exported layer has one.
"""

from __future__ import annotations

from edgecompress.core.costs import out_size
from edgecompress.core.types import Block, Op, Size


def block_key(block: Block, in_size: Size) -> str:
    """Returns a text that is equal for blocks a device runs alike, and only for those."""
    return " + ".join(_chain_key(ops, in_size, any_width=False) for ops in block.branches)


def curve_key(ops: tuple[Op, ...], in_size: Size) -> str | None:
    """Returns the key of all pairs that differ from this one in the width between them; None: no pair."""
    if len(ops) != 2 or ops[0].outputs != ops[1].inputs:
        return None
    return _chain_key(ops, in_size, any_width=True)


def _chain_key(ops: tuple[Op, ...], in_size: Size, *, any_width: bool) -> str:
    parts, size = [], in_size
    for position, op in enumerate(ops):
        first, last = position == 0, position == len(ops) - 1
        inputs = "*" if any_width and not first else str(op.inputs)
        outputs = "*" if any_width and not last else str(op.outputs)
        parts.append(_op_key(op, inputs, outputs) + (f" @{size[0]}x{size[1]}" if first else ""))
        size = out_size(op, size)
    return " > ".join(parts)


def _op_key(op: Op, inputs: str, outputs: str) -> str:
    if op.kind == "linear":
        return f"linear {inputs}>{outputs}"
    words = [f"conv {inputs}>{outputs}", _pair("", op.kernel)]
    words += [_pair("s", op.stride)] if op.stride != (1, 1) else []
    words += [_pair("p", op.padding)] if op.padding != (0, 0) else []
    words += [_pair("d", op.dilation)] if op.dilation != (1, 1) else []
    words += [f"g{op.groups}"] if op.groups > 1 else []
    return " ".join(words)


def _pair(letter: str, values: tuple[int, int]) -> str:
    return f"{letter}{values[0]}x{values[1]}"
