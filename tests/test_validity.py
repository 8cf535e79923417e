"""When a measurement says that it cannot be believed."""

import re

import numpy as np
import pytest
from made_bursts import burst, bursts

from edgecompress.core.measurement import Environment, Validity
from edgecompress.core.presets import Preset
from edgecompress.core.statistics import drift
from edgecompress.devices.validity import MAX_DRIFT, doubts_of_ratios, judge

PRESET = Preset(
    "test",
    "for tests",
    min_runs=30,
    min_seconds=0.1,
    rounds=10,
    process_rounds=10,
    warmup_seconds=0,
    score="median",
)
COOL = Environment(thermal_status=0, clock_mhz=2400.0)
STEADY = bursts([10.0, 10.1] * 15)


def judged(some, *, before=COOL, after=COOL, remarks=()):
    return judge(some, PRESET, before, after, remarks)


def test_a_steady_measurement_is_valid_and_has_nothing_to_say():
    assert judged(STEADY).valid
    assert judged(STEADY).reasons == ()


def busy(share):
    return [burst([10.0] * 3, interference=share) for _ in range(30)]


@pytest.mark.parametrize(
    ("some", "reason"),
    [
        (bursts(np.linspace(10, 12, 30)), r"latency changed by \+\d+\.\d % while measuring \(at most 5 %\)"),
        (bursts(np.linspace(12, 10, 30)), r"latency changed by -\d+\.\d %"),
        (bursts([8.0, 12.0] * 15), r"bursts scatter by \d+\.\d % \(at most 10 %\)"),
        (busy(0.5), r"other programs had the core 50 % of the time \(at most 20 %\)"),
        (STEADY[:9], r"27 runs of at least 30"),
        (bursts([0.5] * 30), r"0\.0 s of at least 0\.1 s"),
    ],
)
def test_what_is_wrong_with_the_bursts_is_said(some, reason):
    found = judged(some)
    assert not found.valid
    assert len(found.reasons) == 1
    assert re.match(reason, found.reasons[0]), found.reasons


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"thermal_status": 2}, "thermal status rose from 0 to 2"),
        ({"clock_mhz": 2200.0}, "the clock fell from 2400 to 2200 MHz"),
    ],
)
def test_what_happened_to_the_device_is_said(after, reason):
    found = judged(STEADY, after=COOL.model_copy(update=after))
    assert (found.valid, found.reasons) == (False, (reason,))


@pytest.mark.parametrize("after", [{"thermal_status": None}, {"clock_mhz": None}, {"clock_mhz": 2350.0}])
def test_what_a_device_does_not_tell_is_not_held_against_it(after):
    assert judged(STEADY, after=COOL.model_copy(update=after)).valid


def test_a_change_that_may_be_chance_is_no_drift():
    some = bursts([10.0, 10.8, 10.0, 10.2, 10.4, 11.0, 10.1, 10.6, 11.0, 10.4, 10.9, 10.7])
    assert drift(some).change > MAX_DRIFT
    assert judged(some).valid


def test_a_computed_latency_is_valid_whatever_the_device_did():
    exact = [one.model_copy(update={"exact": True}) for one in STEADY[:1]]
    found = judged(exact, after=COOL.model_copy(update={"thermal_status": 4}), remarks=("modelled",))
    assert (found.valid, found.reasons) == (True, ("modelled",))


def test_a_little_interference_is_allowed():
    assert judged(busy(0.1)).valid


def test_a_valid_measurement_may_have_something_to_say():
    found = judged([*STEADY[:-1], burst([30.0] * 3)], remarks=("charging",))
    assert found.valid
    assert found.reasons == ("1 of 30 bursts lie far from the others", "charging")


def test_ratios_to_a_reference_are_doubted_where_they_scatter_or_others_had_the_core():
    drifting = bursts(np.linspace(10, 20, 7))  # and the reference with them
    assert doubts_of_ratios([1.5, 1.51] * 3, drifting) == ()
    (scattered,) = doubts_of_ratios([1.0, 1.2, 1.5, 1.9, 2.4], drifting)
    assert scattered.startswith("bursts scatter by") and "at most 10 %" in scattered
    (disturbed,) = doubts_of_ratios([1.5] * 30, busy(0.5))
    assert disturbed == "other programs had the core 50 % of the time (at most 20 %)"
    exact = [one.model_copy(update={"exact": True}) for one in busy(0.5)]
    assert doubts_of_ratios([1.0, 2.0] * 15, exact) == ()


def test_doubts_are_the_reasons_of_what_is_not_valid_only():
    assert judged(STEADY, remarks=("warm",)).doubts == ()
    assert judged(busy(0.5)).doubts == judged(busy(0.5)).reasons != ()
    assert Validity(valid=False).doubts == ("no reason given",)
