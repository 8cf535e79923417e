"""What a network costs when groups of its channels and dimensions are narrower: in ms, MACs and parameters.

A cost is that of the whole network and a change for each of its parts: layers, and MLPs and attentions with
their layers. Each change depends on the widths of a few groups and is computed once, so that a search may ask
often, and for those parts alone that one group touches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from edgecompress.core.costs import op_macs, op_params
from edgecompress.core.types import Block, Cut, Group, Layer, Metric, Op, Size
from edgecompress.errors import ModelError
from edgecompress.latency.space import narrowed_unit, with_head_dim
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.units import Unit, find_units
from edgecompress.pipeline.latency_costs import Clock

Widths = Mapping[str, int]
"""Units that stay of each group, by its name; a group that is not there stays whole."""
Ops = tuple[Op, ...]
_WHOLES = {"head_dim": "attention", "hidden": "MLP"}
"""What a group of a kind is part of."""
OpsCost = Callable[[Ops, Size], float]
"""What operators cost that run one after the other on a map of that size."""


@dataclass(frozen=True)
class Shapes:
    """What of a network has a cost that follows from shapes."""

    layers: tuple[Layer, ...]
    """All convolutions and linear layers that are called once."""
    units: tuple[Unit, ...]
    norms: Mapping[str, int]
    """Parameters of each channel of batch norms, by name."""
    macs: int
    params: int


def shapes_of(model: nn.Module, input_shape: tuple[int, int, int]) -> Shapes:
    """Returns the shapes of a network, which should have been through `rewrite_attention_`."""
    kinds = nn.Conv2d | nn.Linear
    names = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    norms = {
        name: sum(1 for _ in module.parameters())
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    }
    return Shapes(
        layers=find_layers(model, names, input_shape)[0],
        units=find_units(model, input_shape),
        norms=norms,
        macs=total_macs(profile(model, input_shape)),
        params=total_params(model),
    )


def narrowed_op(layer: Layer, groups: Sequence[Group], widths: Widths) -> Op:
    """Returns the operator of a layer when groups have these widths.

    Raises:
        ModelError: nothing would be left of it.
    """
    lost = {"inputs": 0, "outputs": 0}
    for cut, group in _cuts_of([layer.name], groups):
        fewer = (group.width - widths.get(group.name, group.width)) * cut.repeats * cut.run
        for axis in ("inputs", "outputs") if cut.axis == "channels" else (cut.axis,):
            lost[axis] += fewer
    if not any(lost.values()):
        return layer.op
    left = {axis: getattr(layer.op, axis) - fewer for axis, fewer in lost.items()}
    if min(left.values()) < 1:
        raise ModelError(f"{layer.name}: nothing would be left of it; keep at least one unit of each group")
    is_depthwise = layer.op.groups == layer.op.inputs > 1
    return layer.op.model_copy(update=left | ({"groups": left["inputs"]} if is_depthwise else {}))


def _cuts_of(names: Iterable[str], groups: Iterable[Group]) -> list[tuple[Cut, Group]]:
    wanted = set(names)
    return [
        (cut, group)
        for group in groups
        for cut in group.cuts
        if cut.module in wanted and cut.axis != "head_dim"
    ]


@dataclass(frozen=True)
class Part:
    """A layer, a norm, or an MLP or attention with its layers: whatever costs something of its own."""

    name: str
    groups: tuple[str, ...]
    """Whose widths it depends on."""
    whole: tuple[int, ...]
    """Their widths in the network as it is."""
    change: Callable[[tuple[int, ...]], float]
    """What the part costs beyond what it costs now, when `groups` have these widths, in that order."""

    def __call__(self, widths: Widths) -> float:
        """Returns the change of the part's cost when groups have these widths."""
        return self.change(tuple(map(widths.get, self.groups, self.whole)))


@dataclass(frozen=True)
class NarrowedCost:
    """What a network costs with narrower groups, in one metric."""

    metric: Metric
    dense: float
    """Of the network as it is."""
    parts: tuple[Part, ...]
    """Those that depend on a group; all else stays as it is."""
    by_group: Mapping[str, tuple[Part, ...]]
    notes: tuple[str, ...]
    """What is not in the cost, one line each."""

    def __call__(self, widths: Widths) -> float:
        """Returns the cost of the whole network when groups have these widths.

        Raises:
            ConfigError: a latency table does not cover them.
            ModelError: nothing would be left of a layer.
        """
        return self.dense + sum(part(widths) for part in self.parts)

    def of_group(self, name: str, widths: Widths) -> float:
        """Returns the changes of all parts that depend on a group: what differs when it alone does."""
        return sum(part(widths) for part in self.by_group.get(name, ()))


def narrowed_macs(shapes: Shapes, groups: Sequence[Group]) -> NarrowedCost:
    """Returns the multiply-accumulates of a network, counted as in `profile`."""

    def cost(ops: Ops, in_size: Size) -> float:
        return float(sum(op_macs(op, in_size) for op in ops))

    return _narrowed("macs", shapes.macs, shapes, groups, cost, shapes.units)


def narrowed_params(shapes: Shapes, groups: Sequence[Group]) -> NarrowedCost:
    """Returns the parameters of a network, those of batch norms included."""

    def cost(ops: Ops, in_size: Size) -> float:
        return float(sum(map(op_params, ops)))

    norms = [_norm_part(name, each, groups) for name, each in shapes.norms.items()]
    return _narrowed("params", shapes.params, shapes, groups, cost, (), norms)


def narrowed_ms(clock: Clock, shapes: Shapes, groups: Sequence[Group]) -> NarrowedCost:
    """Returns the predicted milliseconds of a network.

    An MLP or attention the table does not know narrower counts as its linear layers alone, with a note.
    """

    @functools.cache
    def cost(ops: Ops, in_size: Size) -> float:
        return clock.block_ms(_known_block(clock, ops, in_size), in_size)

    known = [unit for unit in shapes.units if _is_known(clock, unit)]
    return _narrowed("ms", clock.dense_ms, shapes, groups, cost, known, notes=_cores(clock, known, groups))


def _known_block(clock: Clock, ops: Ops, in_size: Size) -> Block:
    """Returns operators as a block; tables have no depthwise layer of one channel: it counts as two."""
    block = Block(branches=(ops,))
    is_single = len(ops) == 1 and ops[0].kind == "conv2d" and ops[0].inputs == ops[0].outputs == 1
    if not is_single or clock.lookup.find(block, in_size) is not None:
        return block
    two = dict.fromkeys(("inputs", "outputs", "groups"), 2)
    return Block(branches=((ops[0].model_copy(update=two),),))


def _is_known(clock: Clock, unit: Unit) -> bool:
    """Tells whether a table has a unit as it is, and at widths of every kind below."""
    whole = unit.ops[-1].inputs // unit.ops[1].groups
    widths = {whole, max(whole - 1, 1), max(whole // 8 * 8, 1), 1}
    blocks = [Block(branches=(_with_inner(unit, width * unit.ops[1].groups),)) for width in widths]
    return all(clock.lookup.find(block, unit.in_size) is not None for block in blocks)


def _with_inner(unit: Unit, width: int) -> Ops:
    """Returns an MLP with so many hidden units, or an attention whose heads are so wide together."""
    if unit.ops[1].kind == "attention":
        return with_head_dim(unit.ops, width // unit.ops[1].groups)
    return narrowed_unit(unit.ops, width)


def _cores(clock: Clock, known: Iterable[Unit], groups: Iterable[Group]) -> list[str]:
    """Returns a note for each attention and MLP of which the linear layers alone count."""
    inside = {name for unit in known for name in unit.layers}
    return [
        f"{one.name}: latency table {clock.lookup.name!r} knows no narrower {_WHOLES[one.kind]} like this; "
        "its linear layers count, what lies between them does not"
        for one in groups
        if one.kind in _WHOLES and not any(cut.module in inside for cut in one.cuts)
    ]


def _narrowed(
    metric: Metric,
    dense: float,
    shapes: Shapes,
    groups: Sequence[Group],
    cost: OpsCost,
    units: Iterable[Unit],
    others: Iterable[Part] = (),
    notes: Iterable[str] = (),
) -> NarrowedCost:
    layers = {layer.name: layer for layer in shapes.layers}
    whole_units = [unit for unit in units if all(name in layers for name in unit.layers)]
    inside = {name for unit in whole_units for name in unit.layers}
    parts = [_unit_part(unit, [layers[name] for name in unit.layers], groups, cost) for unit in whole_units]
    parts += [_layer_part(layer, groups, cost) for layer in shapes.layers if layer.name not in inside]
    touched = tuple(part for part in (*parts, *others) if part.groups)
    by_group = {one.name: tuple(part for part in touched if one.name in part.groups) for one in groups}
    return NarrowedCost(metric, dense, touched, by_group, (*notes, *_missed(shapes, groups)))


def _missed(shapes: Shapes, groups: Iterable[Group]) -> list[str]:
    known = {*(layer.name for layer in shapes.layers), *shapes.norms}
    cut = dict.fromkeys(cut.module for one in groups for cut in one.cuts if cut.axis != "head_dim")
    return [f"{name}: gets narrower, which does not count" for name in cut if name not in known]


def _part(
    name: str, groups: Sequence[Group], touching: Iterable[str], cost: Callable[[Widths], float]
) -> Part:
    own = {group.name: group.width for _, group in _cuts_of(touching, groups)}
    names, dense = tuple(own), cost({}) if own else 0.0

    @functools.cache
    def change(widths: tuple[int, ...]) -> float:
        return cost(dict(zip(names, widths, strict=True))) - dense

    return Part(name, names, tuple(own.values()), change)


def _layer_part(layer: Layer, groups: Sequence[Group], cost: OpsCost) -> Part:
    own = [group for group in groups if _cuts_of([layer.name], [group])]

    def whole(widths: Widths) -> float:
        return cost((narrowed_op(layer, own, widths),), layer.in_size)

    return _part(layer.name, own, [layer.name], whole)


def _norm_part(name: str, params: int, groups: Sequence[Group]) -> Part:
    cuts = _cuts_of([name], groups)

    def whole(widths: Widths) -> float:
        left = [widths.get(group.name, group.width) * cut.repeats * cut.run for cut, group in cuts]
        return float(params * sum(left))

    return _part(name, groups, [name], whole)


def _unit_part(unit: Unit, layers: Sequence[Layer], groups: Sequence[Group], cost: OpsCost) -> Part:
    """Returns an MLP or attention; where its inputs or outputs change as well, its layers say how much."""
    names = [layer.name for layer in layers]
    own = [group for group in groups if _cuts_of(names, [group])]

    def whole(widths: Widths) -> float:
        ops = [narrowed_op(layer, own, widths) for layer in layers]
        total = cost(_with_inner(unit, ops[-1].inputs), unit.in_size)
        for layer, op in zip(layers, ops, strict=True):
            axis = "inputs" if layer is layers[-1] else "outputs"
            alone = layer.op.model_copy(update={axis: getattr(op, axis)})
            if alone != op:
                total += cost((op,), layer.in_size) - cost((alone,), layer.in_size)
        return total

    return _part(unit.name, own, names, whole)
