"""What tells one layer's operator from another's in an exported file, where names are lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from edgecompress.core.costs import out_size
from edgecompress.core.types import Layer, Op, Size
from edgecompress.errors import ExportError

Signature = tuple[object, ...]
P = TypeVar("P")


def signature(op: Op, out: Size) -> Signature:
    """Returns a value that is equal for operators a device runs alike.

    The size is that of the output, since zeros around the input may be an operator of their own. A 1 x 1
    convolution is a linear layer of its pixels.
    """
    if op.kind == "linear" or (op.kernel == op.stride == (1, 1) and op.groups == 1):
        return "linear", op.inputs, op.outputs, out[0] * out[1]
    return op.kind, op.inputs, op.outputs, op.kernel, op.stride, op.dilation, op.groups, out


def layer_signature(layer: Layer) -> Signature:
    """Returns the signature of the operator a layer becomes."""
    return signature(layer.op, out_size(layer.op, layer.in_size))


def assign(
    wanted: Sequence[Layer], layers: Iterable[Layer], places: Sequence[tuple[Signature, P]], file: str
) -> list[P]:
    """Returns the place of each wanted layer; places are in the order they run.

    `layers` are all layers of the network in forward order, or none: with them the second of two equal
    layers gets the second of two equal places, without them the first that is free.

    Raises:
        ExportError: there is no place for a layer.
    """
    rank = _ranks(layers)
    free: dict[Signature, dict[int, P]] = {}
    for found, place in places:
        equal = free.setdefault(found, {})
        equal[len(equal)] = place
    return [_claimed(layer, rank.get(layer.name), free, file) for layer in wanted]


def _ranks(layers: Iterable[Layer]) -> dict[str, int]:
    """Returns how many equal layers come before each."""
    seen: dict[Signature, int] = {}
    ranks = {}
    for layer in layers:
        found = layer_signature(layer)
        ranks[layer.name] = seen.get(found, 0)
        seen[found] = ranks[layer.name] + 1
    return ranks


def _claimed(layer: Layer, rank: int | None, free: dict[Signature, dict[int, P]], file: str) -> P:
    equal = free.get(layer_signature(layer), {})
    if not equal:
        raise ExportError(
            f"{file}: no operator fits layer {layer.name!r}; export the network again, or leave the layer out"
        )
    return equal.pop(rank if rank in equal else next(iter(equal)))
