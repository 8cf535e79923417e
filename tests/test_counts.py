"""Counts of instructions and the milliseconds a model makes of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_counts import count_model, counts
from pydantic import ValidationError

from edgecompress.core.counts import CLASSES, FEATURES, features, modelled_ms, pick_model
from edgecompress.core.store import read_record, write_record
from edgecompress.errors import ConfigError

numbers = st.integers(0, 10**9)
by_class = st.fixed_dictionaries(dict.fromkeys(CLASSES, numbers))


def test_classes_must_add_up_to_all_instructions():
    one = counts(simd=3, other=4)
    with pytest.raises(ValidationError, match="7 instructions by class, 8 in all"):
        type(one).model_validate(one.model_dump() | {"instructions": 8})


@given(by_class, numbers)
def test_counts_are_the_same_when_read_back(tmp_path_factory, classes, misses):
    place = tmp_path_factory.getbasetemp() / "counts.json"
    one = counts(**classes, l2_misses=misses)
    write_record(place, one)
    assert read_record(place, type(one)) == one


def test_every_feature_can_be_had():
    assert set(features(counts(other=1))) == set(FEATURES)
    assert features(counts(other=1, l3_jumps=2_000_000))["l3_jumps"] == 2


@given(by_class)
def test_one_constant_for_every_class_is_one_for_all_instructions(classes):
    one = counts(**classes | {"other": 1})
    whole = modelled_ms(one, count_model(instructions=200.0))
    assert modelled_ms(one, count_model(**dict.fromkeys(CLASSES, 200.0))) == pytest.approx(whole)


def test_units_are_microseconds_per_million_per_megabyte_per_operator_and_once():
    one = counts(multiplies=3_000_000, weight_bytes=2_000_000, operators=5)
    model = count_model(multiplies=100, weight_megabytes=50, operators=10, constant=7)
    assert modelled_ms(one, model) == pytest.approx((300 + 100 + 50 + 7) / 1e3)


def test_more_of_anything_takes_longer():
    model = count_model(multiplies=200, vector_loads=100, weight_megabytes=30)
    fewer, more = (
        counts(multiplies=10**6, vector_loads=10**6),
        counts(multiplies=10**6, vector_loads=2 * 10**6),
    )
    assert modelled_ms(fewer, model) < modelled_ms(more, model)


def test_a_model_that_gives_no_time_is_refused():
    with pytest.raises(ConfigError, match=r"gives -0\.1 ms"):
        modelled_ms(counts(other=10**6), count_model(instructions=100, constant=-200))


def test_an_unknown_feature_lists_the_known_ones():
    with pytest.raises(ValidationError, match=r"no features: speed; known are: instructions, multiplies"):
        count_model(speed=1.0)


def test_the_model_of_a_cluster_and_kind_of_number_is_picked():
    models = [
        count_model(cluster=one, dtype=kind, constant=1) for one in "ab" for kind in ("float32", "int8")
    ]
    assert pick_model(models, cluster="b", dtype="int8") is models[3]
    with pytest.raises(
        ConfigError, match="no count model for c int8; known are: a float32, a int8, b float32"
    ):
        pick_model(models, cluster="c", dtype="int8")
    with pytest.raises(ConfigError, match="known are: none"):
        pick_model([], cluster="a", dtype="int8")
