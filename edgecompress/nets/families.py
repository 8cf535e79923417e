"""The low-rank families of SVD-NAS: how a kernel becomes matrices, and factors become two layers.

A kernel W (f, c, kh, kw) is read as `slices` matrices of one shape,

    M (slices, rows, columns),   rows = output channels x output taps,
                                 columns = input channels x input taps,

and every M_s ~ left_s @ right_s. `right` is the first layer, `left` the second:

    name    rows per slice   columns per slice   first layer               second layer
    S2      f * kh           c * kw              1 x kw, c -> r            kh x 1, r -> f
    S2T     f * kw           c * kh              kh x 1, c -> r            1 x kw, r -> f
    S4(g)   f                c/g * kh * kw       kh x kw, c -> g r, g groups   1 x 1, g r -> f
    S5(g)   f/g * kh * kw    c                   1 x 1, c -> g r           kh x kw, g r -> f, g groups

Stride, padding and dilation go with the taps. S4(1) is the channel SVD, S4(c) a depthwise then a
pointwise layer, S5(f) with rank 1 is BSConv-U (pointwise, then depthwise). The slices partition the
entries of W, so the squared Frobenius error of a truncation is the sum of the discarded s^2.

Reference: Yu and Bouganis, SVD-NAS, WACV 2023; S2T is the transposed spatial scheme of ALDS+.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from edgecompress.core.costs import chain_macs, op_macs, op_params
from edgecompress.core.types import Layer, Op, Size
from edgecompress.errors import ConfigError, UnsupportedLayer

Kind = Literal["S2", "S2T", "S4", "S5"]


@dataclass(frozen=True)
class Family:
    """One way to cut a kernel into matrices."""

    kind: Kind
    slices: int = 1

    @property
    def name(self) -> str:
        """The name plans and reports use: `S2`, `S4(8)`."""
        return self.kind if self.kind in ("S2", "S2T") else f"{self.kind}({self.slices})"


def family_named(name: str) -> Family:
    """Reads a name such as `S2` or `S4(8)`.

    Raises:
        ConfigError: it is not the name of a family.
    """
    if name == "S2":
        return Family("S2")
    if name == "S2T":
        return Family("S2T")
    match = re.fullmatch(r"S([45])\(([1-9][0-9]*)\)", name)
    if match is not None:
        return Family("S4" if match[1] == "4" else "S5", int(match[2]))
    raise ConfigError(f"family {name!r} is not known; known are: S2, S2T, S4(g), S5(g)")


def check_splittable(op: Op) -> None:
    """Raises UnsupportedLayer for a grouped convolution, which no family can take."""
    if op.groups != 1:
        raise UnsupportedLayer(f"low-rank families need groups=1, this convolution has groups={op.groups}")


def families_of(op: Op) -> tuple[Family, ...]:
    """Returns every family that can save on this operator, one of each set of twins.

    On a 1 x 1 kernel S2, S2T, S4(1) and S5(1) are one and the same; only S4(1) is returned.
    """
    check_splittable(op)
    if op.kind == "linear":
        return (Family("S4"),)
    every = [Family("S4"), Family("S2"), Family("S2T"), Family("S5")]
    every += [Family("S4", g) for g in _divisors(op.inputs)]
    every += [Family("S5", g) for g in _divisors(op.outputs)]
    distinct = {pair_ops(family, op, 1): family for family in reversed(every)}
    return tuple(family for family in reversed(distinct.values()) if _can_save(family, op))


def _divisors(number: int) -> list[int]:
    return [g for g in range(2, number + 1) if number % g == 0]


def _can_save(family: Family, op: Op) -> bool:
    return sum(op_params(part) for part in pair_ops(family, op, 1)) < op_params(op)


def pair_ops(family: Family, op: Op, rank: int) -> tuple[Op, Op]:
    """Returns the two operators that replace `op`; the bias goes to the second."""
    inner = rank * family.slices
    first, second = _tap_axes(family.kind)
    groups_first = family.slices if family.kind == "S4" else 1
    groups_second = family.slices if family.kind == "S5" else 1
    return (
        _part(op, op.inputs, inner, first, groups_first, bias=False),
        _part(op, inner, op.outputs, second, groups_second, bias=op.bias),
    )


def _tap_axes(kind: Kind) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns which kernel axes (0 height, 1 width) the first and the second layer keep."""
    axes: dict[Kind, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "S2": ((1,), (0,)),
        "S2T": ((0,), (1,)),
        "S4": ((0, 1), ()),
        "S5": ((), (0, 1)),
    }
    return axes[kind]


def _part(op: Op, inputs: int, outputs: int, axes: tuple[int, ...], groups: int, *, bias: bool) -> Op:
    if op.kind == "linear":
        return Op(kind="linear", inputs=inputs, outputs=outputs, bias=bias)

    def keep(values: Size, otherwise: int) -> Size:
        return (values[0] if 0 in axes else otherwise, values[1] if 1 in axes else otherwise)

    return Op(
        kind="conv2d",
        inputs=inputs,
        outputs=outputs,
        kernel=keep(op.kernel, 1),
        stride=keep(op.stride, 1),
        padding=keep(op.padding, 0),
        dilation=keep(op.dilation, 1),
        groups=groups,
        bias=bias,
    )


def matrix_shape(family: Family, op: Op) -> tuple[int, int, int]:
    """Returns slices, rows and columns of the matrices."""
    kh, kw = op.kernel
    shapes: dict[Kind, tuple[int, int, int]] = {
        "S2": (1, op.outputs * kh, op.inputs * kw),
        "S2T": (1, op.outputs * kw, op.inputs * kh),
        "S4": (family.slices, op.outputs, op.inputs // family.slices * kh * kw),
        "S5": (family.slices, op.outputs // family.slices * kh * kw, op.inputs),
    }
    return shapes[family.kind]


def max_rank(family: Family, op: Op) -> int:
    """Returns the rank at which the family reproduces any kernel exactly."""
    return min(matrix_shape(family, op)[1:])


def saving_rank(family: Family, layer: Layer) -> int:
    """Returns the largest rank with fewer MACs than the dense layer, or 0; it is below `max_rank`."""
    per_rank = chain_macs(pair_ops(family, layer.op, 1), layer.in_size)
    return (op_macs(layer.op, layer.in_size) - 1) // per_rank


def to_matrices(family: Family, kernel: Tensor) -> Tensor:
    """Reads a (f, c, kh, kw) kernel as (slices, rows, columns) matrices."""
    f, c, kh, kw = kernel.shape
    g = family.slices
    if family.kind == "S2":
        return kernel.permute(0, 2, 1, 3).reshape(1, f * kh, c * kw)
    if family.kind == "S2T":
        return kernel.permute(0, 3, 1, 2).reshape(1, f * kw, c * kh)
    if family.kind == "S4":
        return kernel.reshape(f, g, c // g * kh * kw).transpose(0, 1)
    return kernel.reshape(g, f // g, c, kh, kw).permute(0, 1, 3, 4, 2).reshape(g, f // g * kh * kw, c)


def to_kernel(family: Family, matrices: Tensor, op: Op) -> Tensor:
    """Undoes `to_matrices`."""
    f, c, (kh, kw), g = op.outputs, op.inputs, op.kernel, family.slices
    if family.kind == "S2":
        return matrices.reshape(f, kh, c, kw).permute(0, 2, 1, 3)
    if family.kind == "S2T":
        return matrices.reshape(f, kw, c, kh).permute(0, 2, 3, 1)
    if family.kind == "S4":
        return matrices.transpose(0, 1).reshape(f, c, kh, kw)
    return matrices.reshape(g, f // g, kh, kw, c).permute(0, 1, 4, 2, 3).reshape(f, c, kh, kw)


def fold(family: Family, left: Tensor, right: Tensor, op: Op) -> tuple[Tensor, Tensor]:
    """Turns factors (slices, rows, r) and (slices, r, columns) into the kernels of the two layers."""
    f, c, (kh, kw), g, r = op.outputs, op.inputs, op.kernel, family.slices, left.shape[-1]
    if family.kind == "S2":
        return right.reshape(r, c, 1, kw), left.reshape(f, kh, r).transpose(1, 2).reshape(f, r, kh, 1)
    if family.kind == "S2T":
        return right.reshape(r, c, kh, 1), left.reshape(f, kw, r).transpose(1, 2).reshape(f, r, 1, kw)
    if family.kind == "S4":
        return right.reshape(g * r, c // g, kh, kw), left.transpose(0, 1).reshape(f, g * r, 1, 1)
    first = right.reshape(g * r, c, 1, 1)
    return first, left.reshape(f, kh * kw, r).transpose(1, 2).reshape(f, r, kh, kw)


def unfold(family: Family, first: Tensor, second: Tensor, op: Op) -> tuple[Tensor, Tensor]:
    """Undoes `fold`: returns the factors (slices, rows, r) and (slices, r, columns)."""
    slices, rows, columns = matrix_shape(family, op)
    r = first.shape[0] // slices
    right = first.reshape(slices, r, columns)
    if family.kind == "S4":
        return second.reshape(rows, slices, r).transpose(0, 1), right
    taps = second.shape[2] * second.shape[3]
    return second.reshape(op.outputs, r, taps).transpose(1, 2).reshape(slices, rows, r), right
