"""The measurement protocol, with sessions that only do arithmetic; real ones are in test_local_drivers.py."""

from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_bursts import burst

from edgecompress.core.measurement import Conditions, Environment, OpTime
from edgecompress.core.presets import PRESETS, Preset, pick_preset
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.statistics import compare
from edgecompress.devices.contract import Loaded
from edgecompress.devices.protocol import measure, orders, shortest_names
from edgecompress.errors import ConfigError, ExportError

PRESET = Preset(
    "test",
    "for tests",
    min_runs=20,
    min_seconds=0.1,
    rounds=6,
    process_rounds=4,
    warmup_seconds=0.05,
    score="median",
)
CONDITIONS = Conditions(
    device="abacus",
    build="1",
    runtime="litert",
    runtime_version="unknown",
    threads=1,
    cores=(),
    governor=None,
    provenance="emulated",
)


@dataclass
class Abacus:
    """A session whose files take a fixed time, times what it is told slows each burst."""

    latency_ms: dict[str, float]
    fresh_process: bool = False
    broken: str = ""
    exact: bool = False
    remarks: tuple[str, ...] = ()
    slowed: float = 1.0
    """How much longer each burst takes than the one before."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    conditions = CONDITIONS

    def load(self, file):
        self.calls.append(("load", file.name))
        if file.name == self.broken:
            raise ExportError(f"{file}: cannot be read")
        loads = sum(call == ("load", file.name) for call in self.calls)
        return Loaded(load_ms=float(loads), first_ms=None, notes=("2 TRANSPOSE",))

    def burst(self, file, size):
        self.calls.append(("burst", file.name))
        count = sum(kind == "burst" for kind, _ in self.calls)
        ms = self.latency_ms[file.name] * self.slowed**count
        runs = max(size.min_runs, round(size.min_seconds * 1e3 / ms + 0.5))
        return burst([ms] * runs, interference=0.0).model_copy(update={"exact": self.exact})

    def environment(self):
        self.calls.append(("environment", ""))
        return Environment(load=0.5)

    def settle(self):
        self.calls.append(("settle", ""))
        return self.remarks

    def profile(self, file):
        self.calls.append(("profile", file.name))
        return (OpTime(name="conv", kind="CONV_2D", mean_ms=1.0, calls=1),)

    def of_kind(self, kind):
        return [name for one, name in self.calls if one == kind]


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{name}.onnx" for name in "abc"]
    for path in paths:
        path.write_text(path.name)
    return paths


def times(**latency_ms):
    return {f"{name}.onnx": ms for name, ms in latency_ms.items()}


def measured(pairs, *, preset=PRESET, seed=0, profile=False):
    return measure(pairs, preset, seed=seed, profile=profile, progress=NO_PROGRESS)


def counted(session, files):
    """Returns the names of the counted bursts in order: all but one warm-up per file."""
    return session.of_kind("burst")[files:]


def test_in_every_round_each_file_has_one_burst(files):
    session = Abacus(times(a=1, b=2, c=3))
    found = measured([(file, session) for file in files])
    names = counted(session, 3)
    rounds = [names[start : start + 3] for start in range(0, len(names), 3)]
    assert len(rounds) == PRESET.rounds
    assert all(sorted(one) == ["a.onnx", "b.onnx", "c.onnx"] for one in rounds)
    assert [len(one.bursts) for one in found] == [PRESET.rounds] * 3


@given(st.integers(1, 6), st.integers(1, 20).map(lambda half: 2 * half), st.integers(0, 99))
def test_no_file_has_a_better_place(files, rounds, seed):
    places = [{index: place for place, index in enumerate(one)} for one in orders(files, rounds, seed)]
    assert all(len(one) == files for one in places)
    for first, second in combinations(range(files), 2):
        assert sum(one[first] < one[second] for one in places) == rounds / 2


def test_the_order_follows_from_the_seed():
    assert orders(4, 30, 1) == orders(4, 30, 1)
    assert orders(4, 30, 1) != orders(4, 30, 2)


@pytest.mark.parametrize("rounds", [1, 2, 7, 40])
def test_there_are_as_many_orders_as_rounds(rounds):
    assert len(orders(3, rounds, 0)) == rounds


def test_an_order_and_its_reverse_are_not_neighbours_by_rule():
    found = orders(2, 400, 0)
    turned = sum(one != two for one, two in pairwise(found))
    assert 150 < turned < 250


def test_results_keep_the_order_given(files):
    session = Abacus(times(a=1, b=2, c=3))
    found = measured([(file, session) for file in reversed(files)])
    assert [one.file.name for one in found] == ["c.onnx", "b.onnx", "a.onnx"]
    assert [one.summary.median_ms for one in found] == [3, 2, 1]


def test_bursts_of_a_round_pair_so_that_a_common_drift_cancels(files):
    session = Abacus(times(a=2, b=1), slowed=1.05)
    a, b = measured([(file, session) for file in files[:2]])
    found = compare(a.bursts, b.bursts, names=("a", "b"), paired=True)
    assert found.speedup == pytest.approx(2, rel=0.02)
    assert found.verdict == "faster"


def test_a_file_is_loaded_anew_before_every_burst(files):
    session = Abacus(times(a=1, b=2))
    a, _ = measured([(file, session) for file in files[:2]])
    rounds = session.calls[-2 * 2 * PRESET.rounds - 1 : -1]
    assert [kind for kind, _ in rounds] == ["load", "burst"] * 2 * PRESET.rounds
    assert all(one[1] == two[1] for one, two in zip(rounds[::2], rounds[1::2], strict=True))
    assert a.load_ms == (PRESET.rounds + 2) / 2  # the median of 1, 2, ..., rounds + 1
    assert a.first_ms is None


def test_where_bursts_are_processes_files_are_loaded_once_and_rounds_are_few(files):
    session = Abacus(times(a=1), fresh_process=True)
    (found,) = measured([(files[0], session)])
    assert session.of_kind("load") == ["a.onnx"]
    assert session.of_kind("burst") == ["a.onnx"] * PRESET.process_rounds
    assert found.warmup_runs == 0


def test_an_exact_file_has_one_burst(files):
    session = Abacus(times(a=1, b=2), fresh_process=True, exact=True)
    found = measured([(file, session) for file in files[:2]])
    assert [len(one.bursts) for one in found] == [1, 1]
    assert compare(found[0].bursts, found[1].bursts, names=("a", "b"), paired=True).verdict == "slower"


def test_files_of_two_sessions_take_turns_and_have_equally_many_rounds(files):
    here, phone = Abacus(times(a=1)), Abacus(times(b=1), fresh_process=True)
    found = measured([(files[0], here), (files[1], phone)])
    assert [len(one.bursts) for one in found] == [PRESET.process_rounds] * 2
    assert len(here.of_kind("settle")) == len(phone.of_kind("settle")) == 1


@settings(max_examples=20)
@given(st.floats(5, 300), st.sampled_from(sorted(PRESETS)), st.booleans())
def test_the_totals_of_the_preset_are_reached(tmp_path_factory, latency_ms, name, fresh):
    file = tmp_path_factory.getbasetemp() / "a.onnx"
    file.write_text("a")
    preset = pick_preset(name)
    (found,) = measured([(file, Abacus(times(a=latency_ms), fresh_process=fresh))], preset=preset)
    assert found.validity.valid, found.validity.reasons
    assert found.summary.runs >= preset.min_runs
    assert found.summary.runs * found.summary.mean_ms >= preset.min_seconds * 1e3 * 0.999


def test_a_bad_file_is_found_before_anything_is_measured(files):
    session = Abacus(times(a=1, b=2), broken="b.onnx")
    with pytest.raises(ExportError, match=r"b\.onnx"):
        measured([(file, session) for file in files[:2]])
    assert session.of_kind("burst") == []


def test_a_missing_file_is_found_before_the_device_is_asked(files, tmp_path):
    session = Abacus(times(a=1))
    with pytest.raises(ExportError, match=r"gone\.onnx: there is no such file"):
        measured([(files[0], session), (tmp_path / "gone.onnx", session)])
    assert session.calls == []


def test_one_path_twice_is_refused(files):
    session = Abacus(times(a=1))
    with pytest.raises(ConfigError, match=r"a\.onnx: given twice"):
        measured([(files[0], session)] * 2)


def test_one_file_on_two_devices_is_measured(files):
    found = measured([(files[0], Abacus(times(a=1))), (files[0], Abacus(times(a=2)))])
    assert [one.summary.median_ms for one in found] == [1, 2]


def test_nothing_to_measure_is_refused():
    with pytest.raises(ConfigError, match="nothing to measure"):
        measured([])


def test_copies_of_one_file_are_told_apart_by_name_and_known_by_hash(tmp_path):
    paths = [tmp_path / part / "model.onnx" for part in ("dense", "small")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("same")
    session = Abacus({"model.onnx": 1.0})
    found = measured([(path, session) for path in paths])
    assert [one.file.name for one in found] == ["dense/model.onnx", "small/model.onnx"]
    assert found[0].file.sha256 == found[1].file.sha256


def test_names_are_as_short_as_they_can_be():
    assert shortest_names([Path("runs/a/m.onnx"), Path("runs/b/n.onnx")]) == ["m.onnx", "n.onnx"]
    assert shortest_names([Path("a/x/m.onnx"), Path("b/x/m.onnx")]) == ["a/x/m.onnx", "b/x/m.onnx"]


def test_operators_are_timed_only_when_asked_and_after_everything_else(files):
    session = Abacus(times(a=1))
    (plain,) = measured([(files[0], session)])
    assert plain.operators == ()
    (profiled,) = measured([(files[0], session)], profile=True)
    assert [one.kind for one in profiled.operators] == ["CONV_2D"]
    assert session.calls[-1] == ("profile", "a.onnx")


def test_what_device_and_runtime_say_is_passed_on(files):
    (found,) = measured([(files[0], Abacus(times(a=1), remarks=("still at 41.0 °C",)))])
    assert found.notes == ("2 TRANSPOSE",)
    assert found.validity.valid
    assert "still at 41.0 °C" in found.validity.reasons
    assert found.before.load == found.after.load == 0.5


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ConfigError, match="preset 'fast' is not known; known are: mlperf, quick, standard"):
        pick_preset("fast")


def test_presets_keep_what_they_promise():
    assert PRESETS["quick"].min_runs >= 50
    assert PRESETS["standard"].min_runs >= 200
    assert PRESETS["standard"].min_seconds >= 10
    mlperf = PRESETS["mlperf"]
    assert (mlperf.min_runs >= 1024, mlperf.min_seconds >= 60, mlperf.score) == (True, True, "p90")
