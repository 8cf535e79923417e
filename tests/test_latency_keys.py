"""Keys of blocks, look-ups along curves, the widths to measure, and the journal of a build."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from edgecompress.core.latency_table import Heading, LatencyTable, TableEntry, make_table
from edgecompress.core.measurement import Conditions
from edgecompress.core.types import Block, Layer, Op
from edgecompress.devices.litert_graph import count_operators, operators_outside_delegate
from edgecompress.errors import ArtefactError, ConfigError
from edgecompress.export.tflite_format import run
from edgecompress.latency.journal import Journal
from edgecompress.latency.keys import block_key, curve_key
from edgecompress.latency.lookup import make_lookup
from edgecompress.latency.parsing import parse_block
from edgecompress.latency.sampling import TOLERANCE, next_widths
from edgecompress.latency.staircase import by_kind, fit_curve
from edgecompress.latency.tflite_blocks import write_block
from edgecompress.methods.branches import METHOD as BRANCHES
from edgecompress.methods.lowrank import METHOD as LOWRANK
from edgecompress.nets.modules import block_module, op_of

CONDITIONS = Conditions(
    device="made up",
    build="1",
    runtime="litert",
    runtime_version="2",
    threads=1,
    cores=(0,),
    governor=None,
    provenance="measured",
)


def layer(module: nn.Module, in_size=(8, 8)) -> Layer:
    return Layer(name="layer", op=op_of(module), in_size=in_size)


def blocks(module: nn.Module, in_size=(8, 8)) -> list[Block]:
    found = [one.blocks[0] for one in LOWRANK.candidates(layer(module, in_size))]
    return [Block(branches=((op_of(module),),)), *found]


def pair(width: int, channels: int = 16) -> Block:
    first = Op(kind="conv2d", inputs=channels, outputs=width, kernel=(3, 3), padding=(1, 1))
    return Block(branches=((first, Op(kind="conv2d", inputs=width, outputs=channels)),))


def entry(block: Block, ms: float) -> TableEntry:
    return TableEntry(key=block_key(block, (8, 8)), median_ms=ms, interval_ms=None, runs=1)


HEADING = Heading(
    device="made-up",
    conditions=CONDITIONS,
    format="tflite",
    dtype="float32",
    reference_ms=1.0,
    overhead_ms=0.0,
)


def table(*entries: TableEntry, **changes) -> LatencyTable:
    """A table of a made-up device; `changes` are of its heading."""
    created = datetime(2026, 1, 1, tzinfo=UTC)
    return make_table(HEADING.model_copy(update=changes), soc=None, created=created, entries=entries)


# Keys


def test_blocks_have_one_key_each_whatever_their_bias():
    found = blocks(nn.Conv2d(12, 12, 3, padding=1))
    assert len({block_key(block, (8, 8)) for block in found}) == len(found)
    plain, biased = (Block(branches=((op_of(nn.Conv2d(4, 4, 3, bias=b)),),)) for b in (False, True))
    assert block_key(plain, (8, 8)) == block_key(biased, (8, 8)) != block_key(plain, (8, 9))


def test_pairs_of_one_family_share_a_curve_and_others_do_not():
    families = {}
    for one in LOWRANK.candidates(layer(nn.Conv2d(12, 12, 3, padding=1))):
        families.setdefault(one.family, set()).add(curve_key(one.blocks[0].branches[0], (8, 8)))
    assert all(len(keys) == 1 and None not in keys for keys in families.values())
    assert len({key for keys in families.values() for key in keys}) == len(families)


# Files


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(6, 6, 3, padding=1), (6, 8, 8)),
        (nn.Conv2d(6, 12, 3, stride=2, padding=1), (6, 9, 8)),
        (nn.Conv2d(6, 6, 5, padding=2), (6, 8, 8)),
        (nn.Conv2d(6, 6, 1), (6, 8, 8)),
    ],
)
def test_a_block_as_a_file_gives_maps_of_the_size_the_module_gives(module, shape, tmp_path):
    file, image = tmp_path / "block.tflite", torch.randn(1, *shape)
    for block in blocks(module, shape[1:]):
        write_block(block, shape[1:], file)
        height_width = block_module(block)(image).shape[2:]
        assert run(file, image).shape[1:3] == height_width
        assert operators_outside_delegate(file) == {}


def test_two_branches_are_added_in_the_file(tmp_path):
    both = next(iter(BRANCHES.candidates(layer(nn.Conv2d(8, 8, 3, padding=1))))).blocks[0]
    write_block(both, (8, 8), tmp_path / "block.tflite")
    assert count_operators(tmp_path / "block.tflite")["ADD"] == len(both.branches) - 1 == 1


def test_linear_blocks_take_tokens(tmp_path):
    for block in blocks(nn.Linear(8, 6), (5, 1)):
        write_block(block, (5, 1), tmp_path / "block.tflite")
        assert set(count_operators(tmp_path / "block.tflite")) == {"FULLY_CONNECTED"}


# Look-up


KNOWN = (entry(pair(8), 1.0), entry(pair(24), 3.0))


def test_what_was_measured_is_found_and_what_lies_between_is_interpolated():
    lookup = make_lookup(table(*KNOWN))
    assert lookup.ms(pair(8), (8, 8)) == pytest.approx(1.0)
    assert lookup.ms(pair(16), (8, 8)) == pytest.approx(2.0)


def test_what_is_not_covered_is_an_error_that_names_the_command():
    lookup = make_lookup(table(*KNOWN))
    for missing, size in ((pair(2), (8, 8)), (pair(9), (8, 8)), (pair(8), (4, 4)), (pair(8, 8), (8, 8))):
        assert lookup.find(missing, size) is None
        with pytest.raises(ConfigError, match="edgecompress latency build"):
            lookup.ms(missing, size)


def test_a_curve_is_drawn_on_where_it_was_left_as_slower_than_its_layer():
    assert make_lookup(table(*KNOWN)).ms(pair(32), (8, 8)) == pytest.approx(4.0)
    assert make_lookup(table(entry(pair(4), 1.0))).ms(pair(16), (8, 8)) == pytest.approx(1.0)


def heads(number: int, each: int) -> Block:
    inner = number * each
    middle = Op(kind="attention", inputs=3 * inner, outputs=inner, groups=number)
    first, last = (Op(kind="linear", inputs=a, outputs=b) for a, b in ((48, 3 * inner), (inner, 48)))
    return Block(branches=((first, middle, last),))


def test_attention_is_known_by_the_width_of_its_heads_and_by_their_number():
    by_width = [entry(heads(2, each), 1 + each / 8) for each in (8, 16, 24)]
    lookup = make_lookup(table(*by_width, entry(heads(1, 24), 3.0)))
    assert lookup.ms(heads(2, 16), (8, 8)) == pytest.approx(3.0)
    assert make_lookup(table(*by_width[::2], entry(heads(2, 32), 5.0))).ms(
        heads(2, 16), (8, 8)
    ) == pytest.approx(3.0)
    assert lookup.ms(heads(2, 24), (8, 8)) == pytest.approx(4.0)  # on both curves
    assert lookup.find(heads(2, 4), (8, 8)) is None


def test_one_attention_stands_for_no_other():
    lookup = make_lookup(table(entry(heads(2, 8), 1.0)))
    assert lookup.ms(heads(2, 8), (8, 8)) == 1.0
    for number, each in ((3, 8), (2, 16), (1, 8)):
        assert lookup.find(heads(number, each), (8, 8)) is None


def fork(first: int, second: int) -> Block:
    return Block(branches=pair(first).branches + pair(second).branches)


def test_two_branches_cost_both_and_what_joining_took_where_it_was_measured():
    with pytest.raises(ConfigError, match="has no entry"):
        make_lookup(table(*KNOWN)).ms(fork(8, 24), (8, 8))
    lookup = make_lookup(table(*KNOWN, entry(fork(8, 24), 4.5)))
    assert lookup.ms(fork(8, 24), (8, 8)) == 4.5
    assert lookup.ms(fork(16, 16), (8, 8)) == pytest.approx(2.0 + 2.0 + 0.5)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 10)), min_size=1, max_size=12))
@settings(deadline=None)
def test_a_wider_pair_of_the_same_kind_is_never_faster(points):
    curve = fit_curve(dict(points))
    for kind in by_kind(sorted(dict(points)), 1):
        measured = [curve.at(width) for width in kind]
        assert all(one > 0 for one in measured)
        assert all(two >= one - 1e-9 for one, two in pairwise(measured))
    assert curve.at(min(dict(points)) - 1) is None


def test_eight_channels_may_be_faster_than_seven():
    curve = fit_curve({1: 1.0, 7: 3.0, 8: 2.0, 9: 3.0, 15: 3.5, 16: 3.6})
    assert curve.at(7) == pytest.approx(3.0) and curve.at(8) == pytest.approx(2.0)


# Sampling


def sampled(widths, truth, limit_ms=math.inf):
    measured = {}
    while wanted := next_widths(widths, measured, limit_ms=limit_ms):
        assert not set(wanted) & set(measured), "a width is asked for twice"
        measured |= {width: truth(width) for width in wanted}
    return measured


def test_a_straight_curve_needs_three_widths_of_each_kind():
    assert len(sampled(range(1, 200), lambda w: 1 + 0.1 * w)) <= 9


def test_a_step_is_found_with_few_widths():
    widths = list(range(1, 129))
    truth = lambda w: 1.0 if w <= 70 else 2.0  # noqa: E731
    measured = sampled(widths, truth)
    assert len(measured) < 32
    curve = fit_curve(measured)
    wrong = [w for w in widths if abs(curve.at(w) / truth(w) - 1) > TOLERANCE]
    assert len(wrong) <= 4


def test_a_constant_curve_ends_at_once():
    assert len(sampled(range(1, 100), lambda w: 1.0)) <= 9


@pytest.mark.parametrize("tile", [8, 16, 32])
def test_stairs_are_known_everywhere_from_few_widths(tile):
    widths = list(range(1, 257))
    truth = lambda w: 0.3 + 0.02 * w + 0.05 * tile * -(-w // tile) + (0.4 if w % 8 else 0.0)  # noqa: E731
    measured = sampled(widths, truth)
    curve = fit_curve(measured)
    errors = [abs(curve.at(w) / truth(w) - 1) for w in widths]
    assert len(measured) < 40
    assert sum(errors) / len(errors) < TOLERANCE


def test_a_curve_that_starts_slower_than_its_layer_is_left_at_once():
    assert len(sampled(range(1, 100), lambda w: 5.0 + w, limit_ms=4.0)) == 1


def test_widths_beyond_the_time_of_the_layer_are_not_measured():
    widths = list(range(1, 257))
    truth = lambda w: 1.0 + 0.25 * ((w + 7) // 8)  # noqa: E731
    measured = sampled(widths, truth, limit_ms=3.0)
    useful = [w for w in widths if truth(w) < 3.0]
    assert sum(ms > 3.0 for ms in measured.values()) <= 4
    curve = fit_curve(measured)
    errors = [abs(curve.at(w) / truth(w) - 1) for w in useful]
    assert sum(errors) / len(errors) < 2 * TOLERANCE
    assert len(measured) < len(widths) // 4


# Journal and table


def test_a_journal_is_read_back_and_a_torn_line_is_forgotten(tmp_path):
    path = tmp_path / "j.jsonl"
    journal = Journal(path, HEADING)
    journal.add(entry(pair(4), 1.0))
    journal.add(entry(pair(8), 2.0))
    for cut in range(1, 30):
        torn = tmp_path / f"torn{cut}.jsonl"
        torn.write_bytes(path.read_bytes()[:-cut])
        again = Journal(torn, HEADING)
        assert [one.median_ms for one in again.entries.values()] == [1.0]
        again.add(entry(pair(8), 2.0))
        assert torn.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("change", [{"dtype": "int8"}, {"device": "other"}, {"conditions": {"threads": 2}}])
def test_a_journal_of_other_conditions_is_refused(tmp_path, change):
    Journal(tmp_path / "j.jsonl", HEADING)
    fields = HEADING.model_dump() | {k: v for k, v in change.items() if k != "conditions"}
    fields["conditions"] |= change.get("conditions", {})
    with pytest.raises(ConfigError):
        Journal(tmp_path / "j.jsonl", Heading.model_validate(fields))


def test_a_foreign_file_is_no_journal(tmp_path):
    (tmp_path / "j.jsonl").write_text("hello\n")
    with pytest.raises(ArtefactError, match="not a journal"):
        Journal(tmp_path / "j.jsonl", HEADING)


def test_an_edited_table_is_noticed():
    good = table(entry(pair(4), 1.0))
    edited = good.model_dump_json().replace('"median_ms":1.0', '"median_ms":0.5')
    assert edited != good.model_dump_json()
    with pytest.raises(ValidationError, match="the hash does not fit the content"):
        LatencyTable.model_validate_json(edited)
    for bad in ("0.0", "-1.0", "NaN"):
        with pytest.raises(ValidationError):
            TableEntry.model_validate_json(entry(pair(4), 1.0).model_dump_json().replace("1.0", bad))


@pytest.mark.parametrize(
    "key", ["conv {}>8 1x1 @9x9", "conv 8>8 {}x1 @9x9", "linear 8>8 @{}x1", "attention h1x{} @9x9"]
)
def test_numbers_too_long_for_python_are_no_key(key):
    with pytest.raises(ArtefactError, match="latency key"):
        parse_block(key.format("9" * 5000))
