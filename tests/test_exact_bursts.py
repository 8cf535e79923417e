"""Bursts that are computed and not timed: one is enough, and comparing two leaves no doubt."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_bursts import burst, bursts
from test_protocol import PRESET, Abacus, measured, times

from edgecompress.core.measurement import Burst, Environment
from edgecompress.core.statistics import RESOLUTION, compare, summarise
from edgecompress.devices.validity import judge
from edgecompress.errors import ConfigError

NAMES = ("dense", "small")
milliseconds = st.floats(0.01, 1000)


def exact(ms):
    return burst([ms]).model_copy(update={"exact": True})


def compared(first_ms, second_ms, *, paired=True):
    return compare([exact(first_ms)], [exact(second_ms)], names=NAMES, paired=paired)


@given(milliseconds, milliseconds, st.booleans())
def test_two_exact_bursts_have_one_ratio_and_an_interval_without_width(first_ms, second_ms, paired):
    found = compared(first_ms, second_ms, paired=paired)
    assert found.speedup == pytest.approx(first_ms / second_ms)
    assert found.interval.low == found.speedup == found.interval.high
    assert found.p_value == (first_ms == second_ms)
    assert found.rounds == 1


@given(milliseconds)
def test_a_file_is_as_fast_as_itself(ms):
    found = compared(ms, ms)
    assert (found.speedup, found.verdict) == (1, "no difference")


@pytest.mark.parametrize(
    ("second_ms", "verdict", "statement"),
    [
        (5.0, "faster", "2.000x faster (exact)"),
        (20.0, "slower", "2.000x slower (exact)"),
        (10 * (1 + RESOLUTION / 2), "no difference", "no difference worth naming (0.9950x, exact)"),
    ],
)
def test_the_statement_says_that_it_is_exact(second_ms, verdict, statement):
    found = compared(10.0, second_ms)
    assert (found.verdict, found.statement) == (verdict, statement)


def test_one_exact_burst_does_not_excuse_too_few_timed_ones():
    with pytest.raises(ConfigError, match="a comparison needs 3 or more"):
        compare([exact(1.0)], bursts([1.0]), names=NAMES, paired=False)


@given(milliseconds)
def test_the_summary_of_one_exact_burst_is_that_burst(ms):
    found = summarise([exact(ms)])
    assert (found.runs, found.bursts, found.std_ms) == (1, 1, 0)
    assert found.median_ms == found.p90_ms == found.interval_ms.low == found.interval_ms.high == ms


def test_exact_bursts_are_valid_however_few():
    still = Environment()
    assert judge([exact(1.0)], PRESET, still, still, ("a remark",)).model_dump() == {
        "valid": True,
        "reasons": ("a remark",),
    }
    assert not judge([burst([1.0])], PRESET, still, still).valid


@dataclass
class Computer(Abacus):
    """A session that computes its milliseconds."""

    fresh_process: bool = True
    calls: list[tuple[str, str]] = field(default_factory=list)

    def burst(self, file, size):
        self.calls.append(("burst", file.name))
        return exact(self.latency_ms[file.name])


def test_each_file_has_one_exact_burst_and_nothing_is_repeated(tmp_path):
    files = [tmp_path / f"{name}.onnx" for name in "ab"]
    for file in files:
        file.write_text(file.name)
    session = Computer(times(a=2, b=1))
    found = measured([(file, session) for file in files])
    assert sorted(session.of_kind("burst")) == ["a.onnx", "b.onnx"]
    assert [len(one.bursts) for one in found] == [1, 1]
    assert all(one.validity.valid and one.warmup_runs == 0 for one in found)
    assert compare(found[0].bursts, found[1].bursts, names=NAMES, paired=True).speedup == pytest.approx(2)


def test_bursts_written_before_there_were_exact_ones_were_timed():
    old = burst([1.0]).model_dump()
    del old["exact"]
    assert not Burst.model_validate(old).exact
