"""Laws of the statistics of bursts; how often they are wrong is simulated in test_statistics_simulated.py."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_bursts import burst, bursts, without_samples

from edgecompress.core.measurement import Conditions
from edgecompress.core.statistics import (
    CONFIDENCE,
    RESOLUTION,
    check_alike,
    compare,
    drift,
    outliers,
    spread,
    summarise,
)
from edgecompress.errors import ConfigError

NAMES = ("dense", "small")
milliseconds = st.floats(0.5, 50)
rounds = st.lists(st.tuples(milliseconds, milliseconds), min_size=3, max_size=40)
runs = st.lists(st.lists(milliseconds, min_size=1, max_size=9), min_size=1, max_size=9)
either = st.booleans()


def compared(pairs, *, paired=True):
    first, second = zip(*pairs, strict=True)
    return compare(bursts(first), bursts(second), names=NAMES, paired=paired)


def figures(comparison):
    return (comparison.speedup, comparison.interval.low, comparison.interval.high, comparison.p_value)


@given(rounds, st.floats(0.01, 100), either)
def test_scaling_both_leaves_the_ratio(pairs, factor, paired):
    scaled = [(factor * one, factor * two) for one, two in pairs]
    assert figures(compared(scaled, paired=paired)) == pytest.approx(
        figures(compared(pairs, paired=paired)), rel=1e-6
    )


@given(rounds, either)
def test_swapping_inverts_the_ratio(pairs, paired):
    there = compared(pairs, paired=paired)
    back = compared([(two, one) for one, two in pairs], paired=paired)
    assert figures(back) == pytest.approx(
        (1 / there.speedup, 1 / there.interval.high, 1 / there.interval.low, there.p_value), rel=1e-6
    )
    opposite = {"faster": "slower", "slower": "faster", "no difference": "no difference"}
    assert back.verdict == opposite[there.verdict]


@given(rounds, st.data())
def test_what_slows_a_whole_round_cancels(pairs, data):
    factors = data.draw(st.lists(st.floats(0.1, 10), min_size=len(pairs), max_size=len(pairs)))
    slowed = [(f * one, f * two) for f, (one, two) in zip(factors, pairs, strict=True)]
    assert figures(compared(slowed)) == pytest.approx(figures(compared(pairs)), rel=1e-6)


@given(rounds, st.randoms(use_true_random=False))
def test_the_order_of_rounds_does_not_matter(pairs, rng):
    assert figures(compared(rng.sample(pairs, len(pairs)))) == pytest.approx(figures(compared(pairs)))


@given(rounds, either)
def test_interval_p_value_and_verdict_agree(pairs, paired):
    found = compared(pairs, paired=paired)
    assert found.interval.low <= found.speedup <= found.interval.high
    outside = found.interval.low > 1 or found.interval.high < 1
    if not math.isclose(found.p_value, 1 - CONFIDENCE, rel_tol=1e-6):
        assert outside == (found.p_value < 1 - CONFIDENCE)
    if found.verdict != "no difference":
        assert outside
        assert abs(math.log(found.speedup)) >= math.log(1 + RESOLUTION) - 1e-12


@given(st.lists(milliseconds, min_size=3, max_size=40), st.floats(0.2, 5))
def test_a_constant_ratio_is_found_exactly(times, ratio):
    found = compared([(time, time / ratio) for time in times])
    assert found.speedup == pytest.approx(ratio)
    assert found.rounds == len(times)


def test_a_file_does_not_differ_from_itself():
    found = compared([(3.0, 3.0)] * 8)
    assert (found.verdict, found.p_value, found.speedup) == ("no difference", 1.0, 1.0)


def test_a_certain_difference_below_the_resolution_is_none():
    found = compared([(1.005 * time, time) for time in np.linspace(2, 3, 30)])
    assert found.p_value < 1 - CONFIDENCE
    assert found.verdict == "no difference"


def test_a_few_wild_rounds_do_not_decide():
    rng = np.random.default_rng(0)
    pairs = [(noise, 1.1) for noise in rng.normal(1, 0.01, 30)]
    wild = [(50.0, 1.1)] * 5 + pairs[5:]
    assert compared(wild).verdict == "slower"
    assert compared(wild).speedup == pytest.approx(compared(pairs).speedup, rel=0.01)


@pytest.mark.parametrize(
    ("ratio", "noise", "statement"),
    [
        (1.52, 0.05, r"1\.5\dx faster \(99 % interval 1\.\d\d to 1\.\d\d\)"),
        (1 / 1.52, 0.05, r"1\.5\dx slower \(99 % interval 1\.\d\d to 1\.\d\d\)"),
        (1.02, 0.002, r"1\.0[12]\dx faster \(99 % interval 1\.0\d\d to 1\.0\d\d\)"),
        (1.0, 0.05, r"no difference seen \(0\.9\dx to 1\.0\dx\)"),
    ],
)
def test_the_statement_says_it_in_words(ratio, noise, statement):
    rng = np.random.default_rng(1)
    found = compared([(ratio * math.exp(rng.normal(0, noise)), 1.0) for _ in range(30)])
    assert re.fullmatch(statement, found.statement), found.statement
    shown = [float(number) for number in re.findall(r"\d\.\d+", found.statement)]
    assert shown[-2] <= shown[-1]
    assert len(shown) == 2 or shown[1] <= shown[0] <= shown[2]


@pytest.mark.parametrize(
    ("ratio", "statement"),
    [
        (1.5, "1.500x faster (exact)"),
        (1 / 1.5, "1.500x slower (exact)"),
        (1.001, "no difference worth naming (1.0010x, exact)"),
    ],
)
def test_of_exact_bursts_one_is_enough(ratio, statement):
    one, two = ([burst([ms]).model_copy(update={"exact": True})] for ms in (2 * ratio, 2.0))
    found = compare(one, two, names=NAMES, paired=True)
    assert found.statement == statement
    assert found.interval.low == found.interval.high == found.speedup == pytest.approx(ratio)


def test_rounds_that_do_not_pair_are_refused():
    with pytest.raises(ConfigError, match="dense and small: 4 and 5 rounds do not pair"):
        compare(bursts([1.0] * 4), bursts([1.0] * 5), names=NAMES, paired=True)


def test_unpaired_files_may_have_different_numbers_of_rounds():
    found = compare(bursts([2.0, 2.1, 2.2, 2.1]), bursts([1.0, 1.1, 1.0]), names=NAMES, paired=False)
    assert (found.verdict, found.paired, found.rounds) == ("faster", False, 3)


def test_too_few_rounds_are_refused():
    with pytest.raises(ConfigError, match="2 and 2 rounds; a comparison needs 3"):
        compared([(1.0, 2.0)] * 2)


@given(runs)
def test_a_summary_is_that_of_all_runs_together(samples):
    found, pooled = summarise([burst(one) for one in samples]), np.concatenate(samples)
    expected = [np.median(pooled), pooled.mean(), pooled.std(), pooled.min(), pooled.max()]
    expected.append(np.quantile(pooled, 0.9))
    assert [
        found.median_ms,
        found.mean_ms,
        found.std_ms,
        found.min_ms,
        found.max_ms,
        found.p90_ms,
    ] == pytest.approx(expected, abs=1e-9)
    assert (found.runs, found.bursts) == (len(pooled), len(samples))
    assert pooled.min() <= found.interval_ms.low <= found.interval_ms.high <= pooled.max()


@given(runs)
def test_without_raw_samples_what_can_be_known_is_the_same(samples):
    full = [burst(one) for one in samples]
    found, expected = summarise([without_samples(one) for one in full]), summarise(full)
    assert (found.mean_ms, found.std_ms) == pytest.approx((expected.mean_ms, expected.std_ms), abs=1e-9)
    assert (found.runs, found.min_ms, found.max_ms) == (expected.runs, expected.min_ms, expected.max_ms)
    assert found.median_ms == pytest.approx(np.median([one.median_ms for one in full]))
    assert found.p90_ms is None


def test_a_summary_says_when_its_centres_are_means():
    only_means = [one.model_copy(update={"median_ms": None, "std_ms": None}) for one in bursts([1.0, 2.0])]
    found = summarise([without_samples(one) for one in only_means])
    assert (found.statistic, found.std_ms, found.median_ms) == ("mean", None, 1.5)


def test_long_bursts_are_thinned_without_harm():
    rng = np.random.default_rng(0)
    long = [burst(rng.lognormal(0, 0.1, 5000) * level) for level in rng.normal(1, 0.02, 12)]
    short = [burst(one.samples_ms[:49]) for one in long]
    found, expected = summarise(long).interval_ms, summarise(short).interval_ms
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=0.03)


def test_the_interval_follows_from_the_seed():
    some = bursts(np.random.default_rng(0).normal(5, 1, 9))
    assert summarise(some, seed=3) == summarise(some, seed=3)


@given(st.lists(milliseconds, min_size=1, max_size=30), st.floats(0.1, 10))
def test_drift_spread_and_outliers_do_not_depend_on_the_scale(times, factor):
    some, scaled = bursts(times), bursts([factor * time for time in times])
    assert drift(scaled).change == pytest.approx(drift(some).change, abs=1e-9)
    assert spread(scaled) == pytest.approx(spread(some), abs=1e-9)


def test_a_steady_rise_is_a_drift():
    found = drift(bursts(np.linspace(10, 12, 30)))
    assert found.real
    assert found.change == pytest.approx(0.14, abs=0.01)
    assert drift(bursts(np.linspace(12, 10, 30))).change < -0.1


def test_one_slow_burst_at_the_end_is_no_drift():
    assert not drift(bursts([10.0, 10.1] * 12 + [30.0])).real


def test_too_few_bursts_do_not_drift():
    assert drift(bursts([1.0, 9.0])).change == 0.0


def test_a_wild_burst_is_an_outlier():
    assert outliers(bursts([10.0, 10.1, 9.9, 25.0, 10.0, 10.2])) == (3,)
    assert outliers(bursts([10.0] * 5 + [10.2])) == ()


CONDITIONS = Conditions(
    device="Pixel 4 (flame)",
    build="google/flame:13",
    runtime="litert",
    runtime_version="2.3.0",
    threads=1,
    cores=(7,),
    governor="schedutil",
    provenance="measured",
)
OTHERWISE = {
    "device": "Pixel 6",
    "build": "google/flame:12",
    "runtime": "onnxruntime",
    "runtime_version": "2.2.0",
    "threads": 4,
    "cores": (4,),
    "governor": "performance",
    "provenance": "emulated",
}


def test_like_conditions_may_be_compared():
    assert check_alike(CONDITIONS, CONDITIONS.model_copy()) is None


@pytest.mark.parametrize("field", Conditions.model_fields)
def test_unlike_conditions_refuse_to_be_compared(field):
    other = CONDITIONS.model_copy(update={field: OTHERWISE[field]})
    with pytest.raises(ConfigError, match=f"{field.replace('_', ' ')} is .* for one and .* for the other"):
        check_alike(CONDITIONS, other)


def test_runtimes_may_differ_where_that_is_the_question():
    other = CONDITIONS.model_copy(update={"runtime": "onnxruntime", "runtime_version": "1.31"})
    assert check_alike(CONDITIONS, other, any_runtime=True) is None
    with pytest.raises(ConfigError, match="threads"):
        check_alike(CONDITIONS, other.model_copy(update={"threads": 2}), any_runtime=True)
