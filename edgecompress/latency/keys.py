"""What a device executes, as text: the key of a block, and of the curve of blocks that differ in one width.

    conv 64>16 1x3 p0x1 @32x32 > conv 16>64 3x1 p1x0            a low-rank pair of rank 16
    conv 64>* 1x3 p0x1 @32x32 > conv *>64 3x1 p1x0              its curve
    linear 96>288 @49x1 > attention h4x24 > linear 96>96        four heads, each 24 wide
    linear 96>* @49x1 > attention h*x24 > linear *>96           its curve by heads
    linear 96>* @49x1 > attention h4x2* > linear *>96           its curve by dimensions of each head
    linear 96>288 @49x64 > attention ...                        the same in 64 windows of 49 tokens

Biases are left out: every exported layer has one.
"""

from __future__ import annotations

from itertools import pairwise

from edgecompress.core.types import Block, Op, Size

Wild = frozenset[int]
"""Which widths of a chain are wild: 0 is that of its input, 1 that after the first operator, and so on."""

_MLP, _ATTENTION = ("linear", "gelu", "linear"), ("linear", "attention", "linear")


def block_key(block: Block, in_size: Size) -> str:
    """Returns a text that is equal for blocks a device runs alike, and only for those."""
    return " + ".join(_chain_key(ops, in_size, frozenset()) for ops in block.branches)


def curve_key(ops: tuple[Op, ...], in_size: Size) -> str | None:
    """Returns the key of all chains that differ from this one in one width; None: there is no such curve.

    pair            the width between the two
    three layers    the width before the last; the one after the first is fixed
    MLP             the hidden width
    attention       the number of heads; their width is fixed (by width: `dimension_key`)
    """
    wild = _wild(ops)
    return _chain_key(ops, in_size, wild) if wild else None


def curve_width(ops: tuple[Op, ...]) -> int:
    """Returns the width at which a chain lies on its curve; for attention the number of heads."""
    heads = [op.groups for op in ops if op.kind == "attention"]
    return heads[0] if heads else ops[-1].inputs


def dimension_key(ops: tuple[Op, ...], in_size: Size) -> str | None:
    """Returns the key of all attentions that differ from this one in the width of their heads; None: none.

    Odd widths, `2*+1`, have a curve of their own: on ARM, products of even ones are up to a tenth faster.
    """
    if tuple(op.kind for op in ops) != _ATTENTION or not _wild(ops):
        return None
    number, each = f"h*x{head_dim(ops)} ", f"h{ops[1].groups}x2*{'+1' if head_dim(ops) % 2 else ''} "
    return _chain_key(ops, in_size, _wild(ops)).replace(number, each)


def head_dim(ops: tuple[Op, ...]) -> int:
    """Returns the width of each head of an attention between two linear layers."""
    return ops[1].outputs // ops[1].groups


def width_keys(op: Op, in_size: Size) -> tuple[str, str]:
    """Returns the keys of all operators that differ from this one in their inputs, and in their outputs.

    Both are the same where the two are one width: depthwise convolutions and what has no weights.
    """
    if _is_one_width(op):
        both = _chain_key((op,), in_size, frozenset({0, 1}))
        return both, both
    return _chain_key((op,), in_size, frozenset({0})), _chain_key((op,), in_size, frozenset({1}))


def _wild(ops: tuple[Op, ...]) -> Wild:
    kinds = tuple(op.kind for op in ops)
    if any(first.outputs != second.inputs for first, second in pairwise(ops)):
        return frozenset()
    if kinds in (_MLP, _ATTENTION):
        return frozenset({1, 2})
    fits = len(ops) in (2, 3) and set(kinds) <= {"conv2d", "linear"}
    return frozenset({len(ops) - 1} if fits else ())


def _is_one_width(op: Op) -> bool:
    return op.kind in ("gelu", "attention") or op.groups == op.inputs > 1


def _chain_key(ops: tuple[Op, ...], in_size: Size, wild: Wild) -> str:
    parts = [_op_key(op, wild & {place, place + 1}, place) for place, op in enumerate(ops)]
    parts[0] += f" @{in_size[0]}x{in_size[1]}"
    return " > ".join(parts)


def _op_key(op: Op, wild: Wild, place: int) -> str:
    inputs, outputs = ("*" if at in wild else "" for at in (place, place + 1))
    if op.kind == "gelu":
        return f"gelu {inputs or op.inputs}"
    if op.kind == "attention":
        return f"attention h{inputs or op.groups}x{op.outputs // op.groups}"
    if op.kind == "linear":
        return f"linear {inputs or op.inputs}>{outputs or op.outputs}"
    groups = "*" if len(wild) == 2 and _is_one_width(op) else str(op.groups)
    times = op.outputs // op.inputs if groups == "*" else 1
    words = [f"conv {inputs or op.inputs}>{times if times > 1 else ''}{outputs or op.outputs}"]
    words += [_pair("", op.kernel)]
    words += [_pair("s", op.stride)] if op.stride != (1, 1) else []
    words += [_pair("p", op.padding)] if op.padding != (0, 0) else []
    words += [_pair("d", op.dilation)] if op.dilation != (1, 1) else []
    words += [f"g{groups}"] if op.groups > 1 else []
    return " ".join(words)


def _pair(letter: str, values: tuple[int, int]) -> str:
    return f"{letter}{values[0]}x{values[1]}"
