"""Milliseconds of a layer with fewer inputs and outputs, from the layer as it is and narrower on one side.

What fewer inputs save and what fewer outputs save is multiplied: measuring every pair of widths would take a
thousand times as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgecompress.core.types import Block, Op, Size
from edgecompress.latency.keys import block_key, width_keys
from edgecompress.latency.staircase import Curve, fit_curve


@dataclass(frozen=True)
class Widths:
    """Layers that were measured at several widths."""

    curves: Mapping[str, Curve]
    """By the keys of `width_keys`."""
    wholes: Mapping[str, tuple[Op, ...]]
    """Layers with a curve on one side or both, by what they share with narrower ones; least first."""

    def ms(self, op: Op, in_size: Size) -> float | None:
        """Returns the milliseconds of a layer; None where no wider one was measured at several widths."""
        by_inputs, by_outputs = width_keys(op, in_size)
        if by_inputs == by_outputs:
            curve = self.curves.get(by_inputs)
            return None if curve is None else curve.at(op.inputs)
        wider = (
            self._scaled_ms(op, whole, in_size)
            for whole in self.wholes.get(_family(op, in_size), ())
            if whole.inputs >= op.inputs and whole.outputs >= op.outputs
        )
        return next((ms for ms in wider if ms is not None), None)

    def _scaled_ms(self, op: Op, whole: Op, in_size: Size) -> float | None:
        by_inputs, by_outputs = (self.curves.get(key) for key in width_keys(whole, in_size))
        if by_inputs is None or by_outputs is None:
            return _one_sided_ms(op, whole, by_inputs, by_outputs)
        fewer_inputs, fewer_outputs = by_inputs.at(op.inputs), by_outputs.at(op.outputs)
        dense = by_inputs.at(whole.inputs)
        if fewer_inputs is None or fewer_outputs is None or not dense:
            return None
        return fewer_inputs * fewer_outputs / dense


def widths_of(layers: Iterable[tuple[Op, Size, float]]) -> Widths:
    """Returns what measured layers tell of narrower ones."""
    points: dict[str, dict[int, float]] = defaultdict(dict)
    known = list(layers)
    for op, in_size, ms in known:
        by_inputs, by_outputs = width_keys(op, in_size)
        points[by_inputs][op.inputs] = ms
        points[by_outputs][op.outputs] = ms
    curves = {key: fit_curve(found) for key, found in points.items() if len(found) > 2}
    wholes: dict[str, list[Op]] = defaultdict(list)
    for op, in_size, _ in known:
        widest = [max(points[key]) for key in width_keys(op, in_size)]
        has_curve = any(key in curves for key in width_keys(op, in_size))
        if has_curve and widest == [op.inputs, op.outputs]:
            wholes[_family(op, in_size)].append(op)
    return Widths(
        curves,
        {key: tuple(sorted(ops, key=lambda op: op.inputs * op.outputs)) for key, ops in wholes.items()},
    )


def _family(op: Op, in_size: Size) -> str:
    """Returns what layers have in common that differ in inputs and outputs only."""
    least = {"inputs": op.groups, "outputs": op.groups}
    return block_key(Block(branches=((op.model_copy(update=least),),)), in_size)


def _one_sided_ms(op: Op, whole: Op, by_inputs: Curve | None, by_outputs: Curve | None) -> float | None:
    """A layer that reads a grey image has one input, however narrow it gets: its outputs tell all."""
    if by_outputs is not None and op.inputs == whole.inputs:
        return by_outputs.at(op.outputs)
    if by_inputs is not None and op.outputs == whole.outputs:
        return by_inputs.at(op.inputs)
    return None
