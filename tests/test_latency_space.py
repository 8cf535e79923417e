"""What a table must hold, how it is filled, and how blocks become a network: with a made-up device."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak.killed_commands import NET
from test_latency_keys import HEADING
from torch import nn

from edgecompress.core.costs import block_macs
from edgecompress.core.latency_table import TableEntry, block_ms
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.types import Block, Layer, Op
from edgecompress.errors import ArtefactError, DeviceError
from edgecompress.latency.calibration import BlockSum, agreement, fit_calibration
from edgecompress.latency.journal import Journal
from edgecompress.latency.keys import block_key
from edgecompress.latency.lookup import lookup_of
from edgecompress.latency.parsing import parse_block
from edgecompress.latency.space import Task, make_space, pending, width_space
from edgecompress.latency.sweep import sweep
from edgecompress.methods.branches import METHOD as BRANCHES
from edgecompress.methods.lowrank import METHOD as LOWRANK
from edgecompress.methods.tucker2 import METHOD as TUCKER2
from edgecompress.nets.modules import op_of
from edgecompress.pipeline.latency_space import load_network, random_plans, space_of

LAYERS = [
    Layer(name="first", op=op_of(nn.Conv2d(16, 16, 3, padding=1)), in_size=(16, 16)),
    Layer(name="down", op=op_of(nn.Conv2d(16, 32, 3, stride=2, padding=1)), in_size=(16, 16)),
    Layer(name="again", op=op_of(nn.Conv2d(16, 16, 3, padding=1)), in_size=(16, 16)),
    Layer(name="head", op=op_of(nn.Linear(32, 10)), in_size=(1, 1)),
]


def candidates(layer: Layer, *methods):
    return [one for method in methods for one in method.candidates(layer)]


def space(*methods):
    return make_space([(layer, candidates(layer, *methods)) for layer in LAYERS])


def truth(task: Task) -> float:
    """A made-up device: starting an operator takes time, and channels are padded to eights."""
    ops = [op for branch in task.block.branches for op in branch]
    padded = [op.model_copy(update={"outputs": -(-op.outputs // 8) * 8, "groups": 1}) for op in ops]
    macs = sum(block_macs(Block(branches=((op,),)), task.in_size) for op in padded)
    return 0.002 * len(ops) + macs * 1e-7


def measured(task: Task) -> TableEntry:
    return TableEntry(key=task.key, median_ms=truth(task), interval_ms=None, runs=1)


def run(tmp_path, what, measure, name="j"):
    journal = Journal(tmp_path / name, HEADING)
    sweep(what, journal, measure, tolerance=0.02, seed=0, progress=NO_PROGRESS)
    return journal


# Keys


@pytest.mark.parametrize("methods", [(LOWRANK,), (BRANCHES,), (TUCKER2,)])
def test_every_key_is_read_back(methods):
    for layer in LAYERS[:3]:
        for one in candidates(layer, *methods):
            key = block_key(one.blocks[0], layer.in_size)
            block, size = parse_block(key)
            assert size == layer.in_size and block_key(block, size) == key


@given(st.data())
@settings(deadline=None)
def test_any_convolution_is_read_back(data):
    small = st.tuples(st.integers(1, 5), st.integers(1, 5))
    groups = data.draw(st.integers(1, 4))
    op = Op(
        kind="conv2d",
        inputs=groups * data.draw(st.integers(1, 9)),
        outputs=groups * data.draw(st.integers(1, 9)),
        kernel=data.draw(small),
        stride=data.draw(small),
        padding=data.draw(small),
        dilation=data.draw(small),
        groups=groups,
        bias=True,
    )
    block = Block(branches=((op,),))
    assert parse_block(block_key(block, (30, 31))) == (block, (30, 31))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "conv",
        "conv 3>4 3x3",
        "pool 3 @8x8",
        "linear 3>x @1x1",
        "conv 0>4 1x1 @8x8",
        "conv 3>4 1x1 g2 @8x8",
    ],
)
def test_other_texts_are_no_keys(key):
    with pytest.raises(ArtefactError, match="build the table again"):
        parse_block(key)


# Space and sweep


def test_a_sweep_covers_every_candidate_within_tolerance_and_measures_few(tmp_path):
    what = space(LOWRANK, BRANCHES)
    lookup = lookup_of(
        run(tmp_path, what, lambda tasks: map(measured, tasks)).entries.values(), 0.0, name="t"
    )
    errors, blocks = [], 0
    for layer in LAYERS:
        dense = truth(Task("", Block(branches=((layer.op,),)), layer.in_size))
        for one in candidates(layer, LOWRANK, BRANCHES):
            blocks += 1
            exact = truth(Task("", one.blocks[0], layer.in_size))
            said = lookup.ms(one.blocks[0], layer.in_size)
            if exact < dense:
                errors.append(abs(said / exact - 1))
            else:  # nobody would choose it, but it must not look like a bargain
                assert said >= 0.97 * dense
    assert sum(errors) / len(errors) < 0.02 and max(errors) < 0.15
    assert len(lookup.exact) < blocks / 2


def test_equal_layers_are_measured_once(tmp_path):
    seen = []

    def measure(tasks):
        seen.extend(task.key for task in tasks)
        return map(measured, tasks)

    run(tmp_path, space(LOWRANK), measure)
    assert len(seen) == len(set(seen))


def test_a_killed_sweep_goes_on_and_ends_with_the_same_entries(tmp_path):
    what, rng = space(LOWRANK, BRANCHES), random.Random(1)
    whole = run(tmp_path, what, lambda tasks: map(measured, tasks), "whole")
    seen, kills = [], 0

    def measure(tasks):
        for task in tasks:
            if rng.random() < 0.05:
                raise KeyboardInterrupt
            seen.append(task.key)
            yield measured(task)

    while True:
        try:
            parts = run(tmp_path, what, measure, "parts")
            break
        except KeyboardInterrupt:
            kills += 1
    assert kills > 3
    assert len(seen) == len(set(seen)), "a block was measured twice"
    assert parts.entries == whole.entries


def test_more_layers_only_add(tmp_path):
    few = make_space([(LAYERS[0], candidates(LAYERS[0], LOWRANK))])
    run(tmp_path, few, lambda tasks: map(measured, tasks))
    known = set(Journal(tmp_path / "j", HEADING).entries)
    added = []

    def measure(tasks):
        added.extend(task.key for task in tasks)
        return map(measured, tasks)

    run(tmp_path, space(LOWRANK), measure)
    assert known and added and not known & set(added)


def test_what_was_measured_before_a_device_disappears_is_kept(tmp_path):
    def measure(tasks):
        for task in tasks[:3]:
            yield measured(task)
        raise DeviceError("gone")

    with pytest.raises(DeviceError, match="gone"):
        run(tmp_path, space(LOWRANK), measure)
    assert len(Journal(tmp_path / "j", HEADING).entries) == 3


def test_nothing_is_pending_once_all_is_known(tmp_path):
    what = space(LOWRANK, TUCKER2)
    entries = run(tmp_path, what, lambda tasks: map(measured, tasks)).entries
    known = {key: entry.median_ms for key, entry in entries.items()}
    assert list(pending(what, known, tolerance=0.02)) == []


def test_what_starting_takes_is_no_part_of_a_block(tmp_path):
    what, starting_ms = space(LOWRANK), 0.05
    plain = lookup_of(run(tmp_path, what, lambda tasks: map(measured, tasks)).entries.values(), 0.0, name="t")

    def later(task):
        return measured(task).model_copy(update={"median_ms": truth(task) + starting_ms})

    heading = HEADING.model_copy(update={"overhead_ms": starting_ms})
    journal = Journal(tmp_path / "later", heading)
    sweep(what, journal, lambda tasks: map(later, tasks), tolerance=0.02, seed=0, progress=NO_PROGRESS)
    started = lookup_of(journal.entries.values(), starting_ms, name="t")
    common = started.exact.keys() & plain.exact.keys()
    assert len(common) > 0.9 * len(plain.exact)  # rounding may send the choice of widths elsewhere
    assert all(started.exact[key] == pytest.approx(plain.exact[key]) for key in common)


@pytest.mark.parametrize("ms", [0.3, 0.5, 0.505])
def test_a_block_that_is_lost_in_what_starting_takes_still_takes_something(ms):
    entry = TableEntry(key="linear 1>1 @1x1", median_ms=ms, interval_ms=None, runs=1)
    assert 0 < block_ms(entry, 0.5) < 0.05 * ms
    assert block_ms(entry, 0.0) == ms


@pytest.mark.parametrize(("groups", "outputs"), [(1, 48), (24, 24)], ids=["dense", "depthwise"])
def test_layers_are_known_at_every_width(tmp_path, groups, outputs):
    whole = Op(kind="conv2d", inputs=24, outputs=outputs, kernel=(3, 3), padding=(1, 1), groups=groups)
    journal = run(
        tmp_path,
        width_space([Layer(name="a", op=whole, in_size=(14, 14))]),
        lambda tasks: map(measured, tasks),
    )
    lookup = lookup_of(journal.entries.values(), 0.0, name="t")
    for width in (3, 8, 21, 24):
        change = {"inputs": width} if groups == 1 else {"inputs": width, "outputs": width, "groups": width}
        block = Block(branches=((whole.model_copy(update=change),),))
        there = Task(block_key(block, (14, 14)), block, (14, 14))
        assert lookup.ms(block, (14, 14)) == pytest.approx(truth(there), rel=0.05)


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_a_layer_with_few_inputs_is_known_at_every_number_of_outputs(tmp_path, inputs):
    """As the first layer of a network for grey images, which has nothing narrower on that side."""
    whole = Op(kind="conv2d", inputs=inputs, outputs=48, kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    layers = [Layer(name="a", op=whole, in_size=(28, 28))]
    journal = run(tmp_path, width_space(layers), lambda tasks: map(measured, tasks))
    lookup = lookup_of(journal.entries.values(), 0.0, name="t")
    for width in range(1, 49):
        block = Block(branches=((whole.model_copy(update={"outputs": width}),),))
        there = Task(block_key(block, (28, 28)), block, (28, 28))
        assert lookup.ms(block, (28, 28)) == pytest.approx(truth(there), rel=0.05)


def test_random_plans_do_not_depend_on_the_folder_of_a_network(tmp_path):
    found = []
    for folder in (tmp_path / "one", tmp_path / "another"):
        folder.mkdir()
        (folder / "net.py").write_text(NET)
        network = load_network(f"{folder / 'net.py'}:small", ("lowrank",), input_size=(12, 12))
        journal = run(tmp_path, space_of([network]), lambda tasks: map(measured, tasks), f"{folder.name}.j")
        lookup = lookup_of(journal.entries.values(), 0.0, name="t")
        found.append(random_plans(network, lookup, range(4)))
    assert found[0] == found[1]
    assert len({str(changes) for changes in found[0].values()}) > 2


# Calibration


def test_a_calibration_finds_scale_megabytes_and_rest():
    rng = random.Random(0)
    rows = []
    for number in range(12):
        blocks = BlockSum(rng.uniform(3, 6), rng.uniform(1, 4))
        rows.append((f"random {number}", blocks, 1.1 * blocks.ms + 0.2 * blocks.weight_megabytes + 0.7))
    found = fit_calibration("net", (3, 8, 8), ["a"], rows)
    assert found.scale == pytest.approx(1.1, rel=0.01)
    assert found.per_megabyte_ms == pytest.approx(0.2, rel=0.05)
    assert found.rest_ms == pytest.approx(0.7, rel=0.1)
    assert agreement(found.timings).mean_error < 2e-3
    assert found.predict_ms(4.0, 2.0) == pytest.approx(1.1 * 4 + 0.2 * 2 + 0.7, rel=2e-3)


def test_with_one_plan_the_sum_of_blocks_counts_as_it_is():
    found = fit_calibration("net", (3, 8, 8), ["a"], [("dense", BlockSum(4.0, 1.0), 5.0)])
    assert found.scale == pytest.approx(1.0, abs=1e-3) and found.rest_ms == pytest.approx(1.0, abs=0.01)


def test_noise_never_makes_a_network_with_slower_blocks_the_faster_one():
    rows = [(f"{n}", BlockSum(n, 1.0), 9.0 - n) for n in (1.0, 2.0, 3.0, 4.0)]
    found = fit_calibration("net", (3, 8, 8), ["a"], rows)
    assert found.predict_ms(4.0, 1.0) > found.predict_ms(1.0, 1.0) > 0
    assert agreement(found.timings).mean_error < 0.5


def test_agreement_tells_errors_and_ranks():
    rows = [(f"{n}", BlockSum(float(n), 0.0), float(n)) for n in range(1, 6)]
    perfect = agreement(fit_calibration("net", (3, 8, 8), ["a"], rows).timings)
    assert perfect.mean_error < 0.01 and perfect.rank_correlation == pytest.approx(1.0)
