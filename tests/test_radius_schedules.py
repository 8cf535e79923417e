"""Schedules of radius and scale: ends, directions, published values, texts and refusals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompress.errors import ConfigError
from edgecompress.train.radius_schedules import RadiusSchedule, const, parse_radius, progress_at

SHAPES = ("cos", "sin", "isin", "icos")
FALLS, INVERSE = {"cos", "isin"}, {"isin", "icos"}
bounds = st.tuples(st.floats(0.01, 5), st.floats(0.01, 5)).map(sorted)
shares = st.floats(0, 1)


@given(bounds=bounds, shape=st.sampled_from(SHAPES))
def test_both_ends_are_exact(bounds, shape):
    low, high = bounds
    schedule = RadiusSchedule(shape, low, high)
    ends = (1 / high, 1 / low) if shape in INVERSE else (low, high)
    first, last = ends[::-1] if shape in FALLS else ends
    assert (schedule(0.0), schedule(1.0)) == (first, last)


@given(bounds=bounds, shape=st.sampled_from(SHAPES), pair=st.tuples(shares, shares).map(sorted))
def test_annealing_falls_and_heating_rises(bounds, shape, pair):
    schedule = RadiusSchedule(shape, *bounds)
    earlier, later = (schedule(share) for share in pair)
    assert (later - earlier) * (-1 if shape in FALLS else 1) >= -1e-12 * max(earlier, later)


@given(bounds=bounds, share=shares)
def test_forms_are_those_of_the_draft(bounds, share):
    low, high = bounds
    cosine, sine = (low + (high - low) * f(math.pi * share / 2) for f in (math.cos, math.sin))
    expected = {"cos": cosine, "sin": sine, "isin": 1 / sine, "icos": 1 / cosine}
    for shape, value in expected.items():
        assert RadiusSchedule(shape, low, high)(share) == pytest.approx(value, rel=1e-12)


def test_a_tenth_before_and_after_the_ends_values_are_those_of_the_published_figure():
    falling, rising = (parse_radius(text) for text in ("isin:0.01:2", "icos:2:0.01"))
    assert falling(progress_at(40, 400)) == pytest.approx(3.105, abs=5e-4)
    assert rising(progress_at(360, 400)) == pytest.approx(3.181, abs=5e-4)
    assert rising(progress_at(399, 400)) == pytest.approx(100, rel=1e-12)


def test_cos_down_to_nothing_ends_at_nothing():
    assert parse_radius("cos:3:0")(1.0) == 0.0


@given(value=st.floats(0, 100), share=shares)
def test_a_number_is_constant(value, share):
    assert parse_radius(repr(value))(share) == value


def test_a_constant_has_one_value():
    with pytest.raises(ConfigError, match="differ"):
        RadiusSchedule("const", 1.0, 2.0)


@given(bounds=bounds, shape=st.sampled_from(SHAPES))
def test_a_schedule_is_read_back_from_its_text(bounds, shape):
    schedule = RadiusSchedule(shape, *bounds)
    assert parse_radius(str(schedule)) == schedule
    assert parse_radius(str(const(bounds[0]))) == const(bounds[0])


@pytest.mark.parametrize("shape", sorted(INVERSE))
@pytest.mark.parametrize("least", [0.0, 1e-320])
def test_an_inverse_form_does_not_divide_by_nothing(shape, least):
    with pytest.raises(ConfigError, match="above 0"):
        RadiusSchedule(shape, least, 2.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not understood"),
        ("wide", "not understood"),
        ("cos:1", "not understood"),
        ("cos:2:1:0", "not understood"),
        ("cos:a:b", "not understood"),
        ("tan:0:1", "no 'tan'"),
        ("-1", "0 or more"),
        ("nan", "0 or more"),
        ("inf", "0 or more"),
        ("sin:-1:2", "0 or more"),
        ("sin:0:inf", "0 or more"),
        ("cos:0.5:1.5", "write cos:1.5:0.5"),
        ("icos:0.5:1.5", "write icos:1.5:0.5"),
        ("sin:2:0", "write sin:0:2"),
        ("isin:2:0.5", "write isin:0.5:2"),
        ("isin:0:2", "above 0"),
        ("icos:2:0", "above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_radius(text)


@given(epochs=st.integers(2, 500))
def test_the_last_epoch_is_the_end(epochs):
    assert progress_at(0, epochs) == 0.0
    assert progress_at(epochs - 1, epochs) == 1.0
    assert progress_at(epochs - 0.5, epochs) == 1.0


def test_a_single_epoch_is_the_start():
    assert progress_at(0, 1) == 0.0
