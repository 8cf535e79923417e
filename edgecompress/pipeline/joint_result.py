"""What a joint search says of its choice: the plan, every layer, and milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgecompress.core.costs import block_macs, block_params
from edgecompress.core.results import LayerChange
from edgecompress.core.search_results import Compared, DeviceTime, FrontPoint, Latency, LayerTime, Round
from edgecompress.core.types import Block, Layer, ModelRef, Plan
from edgecompress.pipeline.joint import JointPrepared
from edgecompress.pipeline.latency_costs import Clock
from edgecompress.pipeline.narrowed import Narrowed
from edgecompress.pipeline.narrowed_costs import narrowed_op
from edgecompress.search.joint import Joint


@dataclass(frozen=True)
class Turn:
    """A choice, its network, and what is known of its time."""

    found: Joint
    network: Narrowed
    round: Round | None
    file: Path | None = None


@dataclass(frozen=True)
class Told:
    """What is said of a choice beside its network."""

    target: float
    dense_cost: float
    cost: float
    """As the table is, without corrections."""
    reason: str | None
    front: tuple[FrontPoint, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """What the device said of the dense and the compressed network, and of both in turns."""

    dense: DeviceTime | None = None
    final: DeviceTime | None = None
    compared: Compared | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why some of it is not valid; empty where all is."""
        said = (one.doubts for one in (self.dense, self.final, self.compared) if one is not None)
        return tuple(dict.fromkeys(reason for reasons in said for reason in reasons))


def named_changes(prepared: JointPrepared, found: Joint) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Returns what is not dense: group or layer, kind or family, widths or ranks."""
    whole = {group.name: group for group in prepared.narrowable.groups}
    narrower = (
        (name, whole[name].kind, (width,))
        for name, width in found.widths.items()
        if width < whole[name].width
    )
    return (*narrower, *((name, one.family, one.ranks) for name, one in found.choices.items()))


def joint_plan(ref: ModelRef, prepared: JointPrepared, last: Turn) -> Plan:
    """Returns the plan of a choice; what could not go and stayed dense is skipped."""
    order = [layer.name for layer in prepared.shapes.layers]
    choices = sorted(last.found.choices.items(), key=lambda item: order.index(item[0]))
    dense = {one.name for one in layer_changes(prepared, last.found) if one.family == "dense"}
    return Plan(
        model=ref,
        attention_rewritten=prepared.narrowable.rewritten,
        narrowings=last.network.narrowings,
        choices=tuple(one for _, one in choices),
        skipped=tuple(one for one in prepared.narrowable.refused if one[0] in dense),
    )


def block_at(prepared: JointPrepared, found: Joint, layer: Layer) -> tuple[str, tuple[int, ...], Block]:
    """Returns what stands in place of a layer: family, ranks or widths, operators."""
    if layer.name in found.choices:
        choice = found.choices[layer.name]
        return choice.family, choice.ranks, choice.blocks[0]
    op = narrowed_op(layer, prepared.narrowable.groups, found.widths)
    block = Block(branches=((op,),))
    return ("dense", (), block) if op == layer.op else ("narrower", (op.inputs, op.outputs), block)


def layer_changes(prepared: JointPrepared, found: Joint) -> list[LayerChange]:
    """Returns what becomes of every layer."""
    changes = []
    for layer in prepared.shapes.layers:
        family, ranks, block = block_at(prepared, found, layer)
        dense = Block(branches=((layer.op,),))
        changes.append(
            LayerChange(
                name=layer.name,
                in_size=layer.in_size,
                family=family,
                ranks=ranks,
                params_before=block_params(dense),
                params_after=block_params(block),
                macs_before=block_macs(dense, layer.in_size),
                macs_after=block_macs(block, layer.in_size),
            )
        )
    return changes


def joint_latency(
    clock: Clock,
    prepared: JointPrepared,
    last: Turn,
    rounds: list[Round],
    told: Told,
    measured: Measured,
    why_not: str | None,
) -> Latency:
    """Returns what the table promised and the device said."""

    def time_of(layer: Layer) -> LayerTime:
        block = block_at(prepared, last.found, layer)[2]
        before = clock.block_ms(Block(branches=((layer.op,),)), layer.in_size)
        return LayerTime(name=layer.name, before_ms=before, after_ms=clock.block_ms(block, layer.in_size))

    return Latency(
        table=str(clock.path),
        device=clock.table.device,
        provenance=clock.table.provenance,
        dense_predicted_ms=told.dense_cost,
        predicted_ms=told.cost,
        dense_measured_ms=None if measured.dense is None else measured.dense.ms,
        measured_ms=None if measured.final is None else measured.final.ms,
        rounds=tuple(rounds),
        layers=tuple(map(time_of, clock.layers)),
        comparison=None if measured.compared is None else measured.compared.comparison,
        doubts=measured.doubts,
        not_measured=why_not,
    )
