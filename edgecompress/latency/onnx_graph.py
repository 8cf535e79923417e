"""Operators of a block as ONNX nodes, with random weights: their values do not change the time.

In int8 every map is written as int8 and read back, as quantisers do: runtimes make one operator of what
stands between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgecompress.errors import MissingPackage

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

SCALE = 0.05
"""Of int8 maps."""

_SPREAD = 74.0
"""Standard deviation of random int8 weights."""


def onnx() -> Any:  # noqa: ANN401  untyped package
    """Imports the package when it is needed.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        return import_module("onnx")
    except ImportError:
        raise MissingPackage("ONNX: needs onnx; run: pip install onnx") from None


class Nodes:
    """Nodes in the order they run, and the constants they read; all names begin with `prefix`."""

    def __init__(self, prefix: str, *, int8: bool, seed: int) -> None:
        self.prefix, self.int8 = prefix, int8
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._maps: dict[str, str] = {}  # in int8: what was computed, and its name once it is read back

    def node(self, kind: str, inputs: Iterable[str], **attributes: object) -> str:
        """Adds a node and returns the name of what it computes."""
        return self.split(kind, inputs, 1, **attributes)[0]

    def split(self, kind: str, inputs: Iterable[str], count: int, **attributes: object) -> list[str]:
        """Does the same for a node that computes several maps."""
        read = [self._readable(name) for name in inputs]
        outputs = [f"{self.prefix}/{kind}_{len(self.nodes)}_{number}" for number in range(count)]
        self._append(kind, read, outputs, **attributes)
        self._maps |= dict.fromkeys(outputs, "")
        return outputs

    def constant(self, values: NDArray[Any]) -> str:
        """Adds a constant."""
        name = f"{self.prefix}/constant_{len(self.constants)}"
        self.constants.append(onnx().numpy_helper.from_array(values, name))
        return name

    def number(self, value: float, shape: tuple[int, ...] = ()) -> str:
        """Adds a constant of one number, which may fill a tensor."""
        if not self.int8:
            return self.constant(np.full(shape, value, np.float32))
        whole, scale, zero = (
            np.full(shape, 127, np.int8),
            np.array(value / 127, np.float32),
            np.array(0, np.int8),
        )
        names = [self.constant(whole), self.constant(scale), self.constant(zero)]
        return self._append("DequantizeLinear", names, [f"{names[0]}_read"])

    def weights(self, shape: Sequence[int], *, axis: int, bias: bool) -> list[str]:
        """Adds random weights, a channel each along `axis`, and a bias where one is asked for."""
        spread = float(np.prod(shape) / shape[axis]) ** -0.5
        if self.int8:
            return self._int8_weights(shape, axis, spread, bias=bias)
        values = self.rng.standard_normal(tuple(shape), np.float32) * np.float32(spread)
        shift = [self.rng.standard_normal(shape[axis], np.float32)] if bias else []
        return [self.constant(one) for one in (values, *shift)]

    def _int8_weights(self, shape: Sequence[int], axis: int, spread: float, *, bias: bool) -> list[str]:
        scale = np.full(shape[axis], spread / _SPREAD, np.float32)
        values = self.rng.integers(-127, 128, tuple(shape), np.int8)
        shift = self.rng.integers(-1000, 1000, shape[axis], np.int32)
        read = [self._dequantised(values, scale, axis)]
        return [*read, self._dequantised(shift, scale * np.float32(SCALE), 0)] if bias else read

    def _dequantised(self, values: NDArray[Any], scale: NDArray[np.float32], axis: int) -> str:
        zero = np.zeros(scale.shape, values.dtype)
        inputs = [self.constant(one) for one in (values, scale, zero)]
        return self._append("DequantizeLinear", inputs, [f"{inputs[0]}_read"], axis=axis)

    def rename(self, name: str, new: str) -> None:
        """Lets a node that nothing reads yet write to another name."""
        (node,) = (one for one in self.nodes if name in one.output)
        node.output[list(node.output).index(name)] = new

    def quantised(self, name: str) -> str:
        """Adds the node that writes a map as int8."""
        return self._append("QuantizeLinear", [name, *self._scale()], [f"{name}_int8"])

    def dequantised(self, name: str) -> str:
        """Adds the node that reads an int8 map."""
        return self._append("DequantizeLinear", [name, *self._scale()], [f"{name}_read"])

    def _readable(self, name: str) -> str:
        if not self.int8 or name not in self._maps:
            return name
        self._maps[name] = self._maps[name] or self.dequantised(self.quantised(name))
        return self._maps[name]

    def _scale(self) -> list[str]:
        """Returns the scale and zero point of all maps; equal ones let runtimes move int8 as it is."""
        known = [tensor.name for tensor in self.constants if tensor.name.endswith(("/scale", "/zero"))]
        if known:
            return known
        helper = onnx().numpy_helper
        scale = helper.from_array(np.array(SCALE, np.float32), f"{self.prefix}/scale")
        zero = helper.from_array(np.array(0, np.int8), f"{self.prefix}/zero")
        self.constants += [scale, zero]
        return [scale.name, zero.name]

    def _append(self, kind: str, inputs: list[str], outputs: list[str], **attributes: object) -> str:
        name = f"{self.prefix}/{kind}_{len(self.nodes)}"
        self.nodes.append(onnx().helper.make_node(kind, inputs, outputs, name, **attributes))
        return outputs[0]
