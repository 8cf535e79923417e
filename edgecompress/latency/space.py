"""What must be measured before a search can ask for anything: the distinct blocks of its candidates.

dense layers                     each by itself
pairs, triples, MLPs, attention  curves of blocks that differ in one width, sampled where they bend
two branches                     a few per size of their outputs, for the time of joining them
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from edgecompress.core.costs import block_macs, chain_out_size
from edgecompress.core.types import Block, Candidate, Layer, Op, Size
from edgecompress.latency.keys import (
    block_key,
    curve_key,
    curve_width,
    dimension_key,
    head_dim,
    width_keys,
)
from edgecompress.latency.sampling import next_widths
from edgecompress.latency.staircase import tile_unit

FORKS = 2
"""How many two-branch blocks are measured per size of their outputs."""
PER_CURVE = 8
"""Blocks a curve takes on average: many are slower than their layer at once, others have many steps."""


@dataclass(frozen=True)
class Task:
    """One block to be measured."""

    key: str
    block: Block
    in_size: Size

    @property
    def macs(self) -> int:
        """Multiply-accumulates, to guess how long it will take."""
        return block_macs(self.block, self.in_size)


@dataclass(frozen=True)
class CurveTasks:
    """Blocks that differ in one width."""

    by_width: Mapping[int, Task]
    """Widths ascending."""
    unit: int
    """As of `tile_unit`."""
    dense: tuple[str, ...]
    """Keys of the layers these may replace."""


@dataclass(frozen=True)
class Space:
    """Everything a table must cover."""

    singles: Mapping[str, Task]
    curves: Mapping[str, CurveTasks]

    def __or__(self, other: Space) -> Space:
        """Returns what covers both."""
        return Space({**self.singles, **other.singles}, {**self.curves, **other.curves})


def task_of(block: Block, in_size: Size) -> Task:
    """Returns the task of measuring a block."""
    return Task(block_key(block, in_size), block, in_size)


def dense_task(layer: Layer) -> Task:
    """Returns the task of measuring a layer as it is."""
    return task_of(Block(branches=((layer.op,),)), layer.in_size)


def make_space(options: Iterable[tuple[Layer, Iterable[Candidate]]]) -> Space:
    """Returns what must be measured for layers and their candidates."""
    space = _Collected({}, {}, {}, {})
    for layer, candidates in options:
        dense = dense_task(layer)
        space.singles[dense.key] = dense
        for block in (block for one in candidates for block in one.blocks):
            _collect_(space, block, layer.in_size, dense)
    for found in space.forks.values():
        space.singles.update({task.key: task for task in _spread(found, FORKS)})
    return Space(
        space.singles,
        {
            key: CurveTasks(dict(sorted(tasks.items())), _unit(tasks), tuple(sorted(space.replaced[key])))
            for key, tasks in space.curves.items()
        },
    )


def width_space(layers: Iterable[Layer]) -> Space:
    """Returns what must be measured to know layers with fewer inputs or outputs."""
    curves: dict[str, CurveTasks] = {}
    for layer in layers:
        op, keys = layer.op, width_keys(layer.op, layer.in_size)
        fields = (("inputs", op.inputs), ("outputs", op.outputs))
        for key, (field, most) in zip(keys, fields, strict=True):
            if op.groups == 1 or keys[0] == keys[1]:
                curves[key] = _narrowed(layer, field, most, curves.get(key))
    return Space({}, curves)


def _narrowed(layer: Layer, field: str, most: int, known: CurveTasks | None) -> CurveTasks:
    """Returns a layer with every width up to its own; depthwise ones have the same at both sides."""
    found = {} if known is None else dict(known.by_width)
    least = 1 if layer.op.groups == 1 else 2  # a depthwise layer of one channel is a plain one
    for width in range(least, most + 1):
        change = (
            {field: width} if layer.op.groups == 1 else dict.fromkeys(("inputs", "outputs", "groups"), width)
        )
        op = layer.op.model_copy(update=change)
        found[width] = task_of(Block(branches=((op,),)), layer.in_size)
    return CurveTasks(dict(sorted(found.items())), 1, ())


def unit_space(units: Iterable[tuple[tuple[Op, ...], Size]]) -> Space:
    """Returns what must be measured to know narrower MLPs, and attention with fewer or narrower heads."""
    found: dict[str, dict[int, Task]] = defaultdict(dict)
    for ops, in_size in units:
        for key, width, smaller in _narrower_units(ops, in_size):
            assert key is not None  # MLPs and attention have curves
            found[key][width] = task_of(Block(branches=(smaller,)), in_size)
    return Space({}, {key: CurveTasks(dict(sorted(tasks.items())), 1, ()) for key, tasks in found.items()})


def _narrower_units(ops: tuple[Op, ...], in_size: Size) -> Iterator[tuple[str | None, int, tuple[Op, ...]]]:
    """Yields a unit at every width, with the key of its curve and its place there."""
    for width in range(1, curve_width(ops) + 1):
        smaller = narrowed_unit(ops, width)
        yield curve_key(smaller, in_size), width, smaller
    for dim in range(1, head_dim(ops) + 1) if ops[1].kind == "attention" else ():
        smaller = with_head_dim(ops, dim)
        yield dimension_key(smaller, in_size), dim, smaller


def narrowed_unit(ops: tuple[Op, ...], width: int) -> tuple[Op, ...]:
    """Returns an MLP with fewer hidden channels, or self-attention with fewer heads."""
    if ops[1].kind == "attention":
        return _with_heads(ops, width, head_dim(ops))
    return _with_inner(ops, {"inputs": width, "outputs": width})


def with_head_dim(ops: tuple[Op, ...], dim: int) -> tuple[Op, ...]:
    """Returns self-attention with as many heads, each of this width."""
    return _with_heads(ops, ops[1].groups, dim)


def _with_heads(ops: tuple[Op, ...], heads: int, dim: int) -> tuple[Op, ...]:
    return _with_inner(ops, {"inputs": 3 * heads * dim, "outputs": heads * dim, "groups": heads})


def _with_inner(ops: tuple[Op, ...], inner: Mapping[str, int]) -> tuple[Op, ...]:
    return (
        ops[0].model_copy(update={"outputs": inner["inputs"]}),
        ops[1].model_copy(update=dict(inner)),
        ops[2].model_copy(update={"inputs": inner["outputs"]}),
    )


def _unit(tasks: Mapping[int, Task]) -> int:
    return tile_unit(next(iter(tasks.values())).block.branches[0])


@dataclass(frozen=True)
class _Collected:
    singles: dict[str, Task]
    curves: dict[str, dict[int, Task]]
    replaced: dict[str, set[str]]
    forks: dict[tuple[int, Size], dict[str, Task]]


def _collect_(space: _Collected, block: Block, in_size: Size, dense: Task) -> None:
    for chain in block.branches:
        task = task_of(Block(branches=(chain,)), in_size)
        curve = curve_key(chain, in_size)
        if curve is None:
            space.singles[task.key] = task
        else:
            space.curves.setdefault(curve, {})[curve_width(chain)] = task
            space.replaced.setdefault(curve, set()).add(dense.key)
    if len(block.branches) > 1:
        size = (chain[-1].outputs, chain_out_size(chain, in_size))
        whole = task_of(block, in_size)
        space.forks.setdefault(size, {})[whole.key] = whole


def _spread(tasks: Mapping[str, Task], count: int) -> list[Task]:
    """Returns tasks from the middle of their number of operations, evenly spread."""
    ordered = sorted(tasks.values(), key=lambda task: (task.macs, task.key))
    places = [len(ordered) * (2 * i + 1) // (2 * count) for i in range(count)]
    return [ordered[place] for place in dict.fromkeys(places)]


def pending(space: Space, known_ms: Mapping[str, float], *, tolerance: float) -> Iterator[Task]:
    """Yields the blocks to be measured next; what comes after them depends on what they take."""
    yield from (task for key, task in space.singles.items() if key not in known_ms)
    for curve in space.curves.values():
        yield from _missing(curve, known_ms, tolerance)


def _limit_ms(curve: CurveTasks, known_ms: Mapping[str, float]) -> float | None:
    """Returns what the slowest layer takes that a curve may replace; None while one is not known."""
    dense = [known_ms.get(key) for key in curve.dense]
    return None if None in dense else max((ms for ms in dense if ms is not None), default=math.inf)


def _missing(curve: CurveTasks, known_ms: Mapping[str, float], tolerance: float) -> list[Task]:
    """Returns the next blocks of a curve; only its first while the limit is not known.

    Goes through the choice from the start: what is measured in the end must not depend on where a build was
    stopped.
    """
    done: dict[int, float] = {}
    limit_ms = _limit_ms(curve, known_ms)
    limit = math.inf if limit_ms is None else limit_ms
    while wanted := next_widths(
        list(curve.by_width), done, unit=curve.unit, limit_ms=limit, tolerance=tolerance
    ):
        tasks = [curve.by_width[width] for width in wanted]
        missing = [task for task in tasks if task.key not in known_ms]
        if missing or limit_ms is None:
            return missing
        done |= {width: known_ms[task.key] for width, task in zip(wanted, tasks, strict=True)}
    return []


def expected_count(space: Space, known_ms: Mapping[str, float], *, tolerance: float) -> int:
    """Guesses how many more blocks will be measured; 0 where nothing is pending."""
    singles = sum(key not in known_ms for key in space.singles)
    return singles + sum(_expected(curve, known_ms, tolerance) for curve in space.curves.values())


def _expected(curve: CurveTasks, known_ms: Mapping[str, float], tolerance: float) -> int:
    missing = len(_missing(curve, known_ms, tolerance))
    measured = sum(task.key in known_ms for task in curve.by_width.values())
    return max(PER_CURVE - measured, missing) if missing else 0
