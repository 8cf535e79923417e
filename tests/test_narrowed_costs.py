"""What narrower networks cost: counted against narrowed networks, and timed against a made-up device."""

from __future__ import annotations

import copy
import random

import pytest
from test_latency_keys import HEADING
from torch import nn

from edgecompress.core.costs import op_macs
from edgecompress.core.latency_table import TableEntry, make_table
from edgecompress.core.types import Block, Cut, Group, Layer, Op
from edgecompress.errors import ConfigError, ModelError
from edgecompress.latency.calibration import BlockSum, fit_calibration
from edgecompress.latency.lookup import lookup_of
from edgecompress.latency.space import dense_task, task_of, unit_space, width_space
from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.dimension_groups import find_dimension_groups
from edgecompress.nets.modules import find_layers
from edgecompress.nets.narrowing import narrow_
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import load_model
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable
from edgecompress.nets.units import find_units
from edgecompress.nets.width_groups import find_width_groups
from edgecompress.pipeline.latency_costs import Clock, read_clock
from edgecompress.pipeline.narrowed_costs import (
    NarrowedCost,
    Shapes,
    narrowed_macs,
    narrowed_ms,
    narrowed_op,
    narrowed_params,
    shapes_of,
)

ensure_torchvision_importable()
from torchvision.models import SwinTransformer, VisionTransformer  # noqa: E402  # needs the line above

SCALE, REST_MS = 1.1, 0.7


def vit():
    return VisionTransformer(16, 4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24, num_classes=5)


def swin():
    return SwinTransformer([2, 2], 8, [2], [2], [3, 3], num_classes=5)


def depthwise():
    parts = [nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    parts += [nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


MADE = {"vit": (vit, (3, 16, 16)), "swin": (swin, (3, 18, 18)), "depthwise": (depthwise, (3, 8, 8))}
NETWORKS = [*MADE, "zoo:fashion_resnet", "zoo:fashion_vit"]


def narrowable(name):
    """Returns a network ready to be narrowed, its input shape and its groups."""
    if name in MADE:
        model, shape = MADE[name][0](), MADE[name][1]
    else:
        loaded = load_model(name)
        model, shape = loaded.module, loaded.ref.input_shape
    rewrite_attention_(model.eval(), shape)
    dimensions, _ = find_dimension_groups(model, shape)
    return model, shape, dimensions or find_width_groups(model, shape).groups


def some_widths(groups, seed):
    rng = random.Random(seed)
    return {group.name: rng.randint(1, group.width) for group in groups}


def narrowed(model, groups, widths):
    smaller = copy.deepcopy(model)
    narrow_(smaller, groups, {name: range(width) for name, width in widths.items()})
    return smaller


# Counted from shapes


@pytest.mark.parametrize("name", NETWORKS)
def test_operators_macs_and_parameters_are_those_of_the_narrowed_network(name):
    model, shape, groups = narrowable(name)
    shapes = shapes_of(model, shape)
    macs, params = narrowed_macs(shapes, groups), narrowed_params(shapes, groups)
    assert macs({}) == total_macs(profile(model, shape)) and params({}) == total_params(model)
    assert groups and not macs.notes and not params.notes
    for seed in range(2):
        widths = some_widths(groups, seed)
        smaller = narrowed(model, groups, widths)
        found, _ = find_layers(smaller, [layer.name for layer in shapes.layers], shape)
        assert {one.name: one.op for one in found} == {
            layer.name: narrowed_op(layer, groups, widths) for layer in shapes.layers
        }
        assert macs(widths) == total_macs(profile(smaller, shape))
        assert params(widths) == total_params(smaller)


def test_nothing_left_of_a_layer_is_an_error():
    layer = Layer(name="a", op=Op(kind="linear", inputs=4, outputs=8), in_size=(1, 1))
    group = Group(name="g", kind="hidden", width=4, cuts=(Cut(module="a", axis="inputs"),), gates=())
    assert narrowed_op(layer, [group], {"g": 1}).inputs == 1
    with pytest.raises(ModelError, match=r"^a: nothing would be left"):
        narrowed_op(layer, [group], {"g": 0})


def test_what_gets_narrower_and_is_not_counted_is_noted():
    group = Group(name="g", kind="channels", width=4, cuts=(Cut(module="far", axis="inputs"),), gates=())
    cost = narrowed_macs(Shapes((), (), {}, 10, 10), [group])
    assert cost({"g": 1}) == 10 and cost.notes == ("far: gets narrower, which does not count",)


# Units of rewritten networks


def test_attention_is_found_with_its_layers_once_it_is_rewritten():
    model, shape, _ = narrowable("vit")
    attention, mlp, *others = find_units(model, shape)
    assert len(others) == 2
    assert attention.in_size == mlp.in_size == (17, 1)
    assert attention.ops[1] == Op(kind="attention", inputs=48, outputs=16, groups=2)
    assert [name.rpartition(".")[2] for name in attention.layers] == ["qkv", "proj"]
    assert all(isinstance(model.get_submodule(name), nn.Linear) for name in (*attention.layers, *mlp.layers))


def test_windows_are_units_of_their_own_size():
    model, shape, groups = narrowable("swin")
    attentions = [unit for unit in find_units(model, shape) if unit.ops[1].kind == "attention"]
    assert [unit.in_size for unit in attentions] == [(9, 9), (9, 9)]  # 9 x 9 tokens in 3 x 3 windows
    assert sum(group.kind == "head_dim" for group in groups) == 2


# Milliseconds


def truth(task):
    """A made-up device: starting an operator takes time, and outputs of layers are padded to eights."""
    ops, (tokens, windows) = task.block.branches[0], task.in_size
    total = 0.002 * len(ops)
    for op in ops:
        if op.kind == "attention":
            total += 1e-7 * windows * tokens**2 * (2 * op.outputs + 5 * op.groups)
        elif op.kind == "gelu":
            total += 1e-6 * windows * tokens * op.outputs
        else:
            padded = op.model_copy(update={"outputs": -(-op.outputs // 8) * 8, "groups": 1})
            total += 1e-7 * op_macs(padded, task.in_size)
    return total


def measured(task):
    return TableEntry(key=task.key, median_ms=truth(task), interval_ms=None, runs=1)


def clock_of(model, shape, groups, *, units=True):
    """Returns the clock of a made-up device that was asked for every width."""
    shapes = shapes_of(model, shape)
    space = width_space(shapes.layers)
    if units:
        space |= unit_space((unit.ops, unit.in_size) for unit in shapes.units)
    tasks = [task for curve in space.curves.values() for task in curve.by_width.values()]
    entries = {task.key: measured(task) for task in (*tasks, *map(dense_task, shapes.layers))}
    dense_ms = sum(truth(dense_task(layer)) for layer in shapes.layers)
    rows = [
        (f"{n}", BlockSum(n * dense_ms, 0.1), SCALE * n * dense_ms + REST_MS) for n in (0.4, 0.6, 0.8, 1.0)
    ]
    calibration = fit_calibration("net", shape, [layer.name for layer in shapes.layers], rows)
    calibration = calibration.model_copy(update={"scale": SCALE, "per_megabyte_ms": 0.0, "rest_ms": REST_MS})
    table = make_table(
        HEADING,
        soc=None,
        created="2030-01-01T00:00:00Z",
        entries=entries.values(),
        calibrations=[calibration],
    )
    lookup = lookup_of(entries.values(), 0.0, name="made")
    return Clock(None, table, lookup, calibration, shapes.layers), shapes


def true_change(shapes, groups, widths, *, cores=True):
    """Returns how much the made-up device saves: units as a whole, all other layers by themselves."""
    layers = {layer.name: layer for layer in shapes.layers}
    inside = {name for unit in shapes.units for name in unit.layers} if cores else set()
    total = 0.0
    for layer in (layer for layer in shapes.layers if layer.name not in inside):
        smaller = layer.model_copy(update={"op": narrowed_op(layer, groups, widths)})
        total += truth(dense_task(smaller)) - truth(dense_task(layer))
    for unit in shapes.units if cores else ():
        first, last = (narrowed_op(layers[unit.layers[at]], groups, widths) for at in (0, -1))
        three = first.model_copy(update={"outputs": 3 * last.inputs})
        inner, times = unit.ops[1], 3 if unit.ops[1].kind == "attention" else 1
        core = inner.model_copy(update={"inputs": times * last.inputs, "outputs": last.inputs})
        ops = (three if times == 3 else first, core, last)
        total += truth(task_of(Block(branches=(ops,)), unit.in_size))
        total -= truth(task_of(Block(branches=(unit.ops,)), unit.in_size))
    return SCALE * total


@pytest.mark.parametrize("name", ["vit", "swin", "zoo:fashion_vit"])
def test_milliseconds_of_narrower_transformers_are_those_of_their_units(name):
    model, shape, groups = narrowable(name)
    clock, shapes = clock_of(model, shape, groups)
    cost = narrowed_ms(clock, shapes, groups)
    assert not cost.notes and cost({}) == pytest.approx(clock.dense_ms)
    for seed in range(3):
        widths = some_widths(groups, seed)
        change = true_change(shapes, groups, widths)
        assert change < 0
        assert cost(widths) - cost.dense == pytest.approx(change, rel=0.01)


@pytest.mark.parametrize("name", ["depthwise", "zoo:fashion_resnet"])
def test_milliseconds_of_narrower_convolutions_follow_the_widths_of_the_table(name):
    model, shape, groups = narrowable(name)
    clock, shapes = clock_of(model, shape, groups)
    cost = narrowed_ms(clock, shapes, groups)
    for group in groups:  # one side of each layer at a time, which the table knows exactly
        widths = {group.name: max(2, group.width // 2)}
        change = true_change(shapes, groups, widths)
        assert cost(widths) - cost.dense == pytest.approx(change, rel=0.02)


def test_a_depthwise_layer_of_one_channel_counts_as_one_of_two():
    model, shape, groups = narrowable("depthwise")
    clock, shapes = clock_of(model, shape, groups)
    cost = narrowed_ms(clock, shapes, groups)
    (part,) = [part for part in cost.parts if part.name == "3"]
    assert part({groups[0].name: 1}) == part({groups[0].name: 2}) < 0


def test_attention_the_table_does_not_have_counts_by_its_layers_with_a_note():
    model, shape, groups = narrowable("vit")
    clock, shapes = clock_of(model, shape, groups, units=False)
    cost = narrowed_ms(clock, shapes, groups)
    assert len(cost.notes) == len(groups) and "'made' knows no narrower attention" in cost.notes[0]
    widths = some_widths(groups, 0)
    assert cost(widths) - cost.dense == pytest.approx(
        true_change(shapes, groups, widths, cores=False), rel=0.02
    )


def test_widths_of_tokens_and_of_heads_change_together():
    model, shape, groups = narrowable("vit")
    clock, shapes = clock_of(model, shape, groups)
    (unit, *_), group = shapes.units, groups[0]
    outer = Group(
        name="tokens",
        kind="channels",
        width=16,
        cuts=(Cut(module=unit.layers[0], axis="inputs"), Cut(module=unit.layers[1], axis="outputs")),
        gates=(),
    )
    cost = narrowed_ms(clock, shapes, [group, outer])
    alone = [cost({name: 8 if name == "tokens" else 4}) - cost.dense for name in (group.name, "tokens")]
    both = cost({group.name: 4, "tokens": 8}) - cost.dense
    assert sum(alone) < both < min(alone) < 0


def test_one_group_changes_only_its_own_parts():
    model, shape, groups = narrowable("zoo:fashion_resnet")
    cost = narrowed_macs(shapes_of(model, shape), groups)
    before = some_widths(groups, 0)
    for group in groups:
        after = before | {group.name: max(1, before[group.name] // 2)}
        by_parts = cost.of_group(group.name, after) - cost.of_group(group.name, before)
        assert cost(after) - cost(before) == by_parts
        assert len(cost.by_group[group.name]) < len(cost.parts)


def test_each_change_is_computed_once():
    calls = []
    model, shape, groups = narrowable("depthwise")
    clock, shapes = clock_of(model, shape, groups)
    known = clock.lookup.find
    object.__setattr__(clock.lookup, "find", lambda block, size: calls.append(block) or known(block, size))
    cost: NarrowedCost = narrowed_ms(clock, shapes, groups)
    widths = {groups[0].name: 5}
    first = cost(widths)
    asked = len(calls)
    assert cost(widths) == first and len(calls) == asked > 0


def test_a_layer_the_table_does_not_have_is_an_error_that_names_the_command():
    model, shape, groups = narrowable("depthwise")
    clock, shapes = clock_of(model, shape, groups)
    lookup = lookup_of([measured(dense_task(layer)) for layer in shapes.layers], 0.0, name="made")
    cost = narrowed_ms(Clock(None, clock.table, lookup, clock.calibration, shapes.layers), shapes, groups)
    with pytest.raises(ConfigError, match=r"'made': has no entry for .* latency build"):
        cost({groups[0].name: 5})


# The table that is shipped


def test_the_shipped_table_knows_every_width_of_the_embedded_transformers_heads():
    model, shape, groups = narrowable("zoo:fashion_vit")
    clock = read_clock("pixel4", load_model("zoo:fashion_vit"), ())  # takes a second, most of this test
    cost = narrowed_ms(clock, shapes_of(model, shape), groups)
    assert not cost.notes
    heads = next(group for group in groups if group.kind == "head_dim")
    saved = [cost.dense - cost({heads.name: width}) for width in range(1, heads.width + 1)]
    assert saved[-1] == pytest.approx(0, abs=1e-9) and 0.15 < saved[0] < 0.25
    assert saved[7] > saved[15] > saved[23] and saved[0] == max(saved)
