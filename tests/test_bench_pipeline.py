"""`bench` on this machine with both of its runtimes; nothing here depends on how fast they are."""

import itertools
import os
from dataclasses import dataclass, field

import pytest
from bench_files import SHORT, exported_run, onnx, tflite

from edgecompress.core.measurement import BenchResult
from edgecompress.core.presets import PRESETS
from edgecompress.core.store import read_record, write_record
from edgecompress.devices import local_runs
from edgecompress.errors import ArtefactError, ConfigError, EdgeCompressError, ExportError
from edgecompress.pipeline.bench import bench

CORE = min(os.sched_getaffinity(0))


@pytest.fixture(scope="module", autouse=True)
def short_bursts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quick", SHORT)
        patch.setattr(local_runs, "_PATIENCE_S", 0.0)  # for other programs: tests of ours run beside this one
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    tflite(made / "a.tflite")
    tflite(made / "b.tflite", "small_int8.tflite")
    onnx(made / "c.onnx")
    return made


@pytest.fixture(scope="module")
def three(folder):
    """Returns two TFLite files and one ONNX file measured together, and where that was written."""
    output = folder / "results" / "three.json"
    what = [str(folder / name) for name in ("a.tflite", "b.tflite", "c.onnx")]
    return bench(what, preset="quick", profile=True, seed=3, output=output), output


@dataclass
class Noted:
    """A progress that notes what was done."""

    steps: list[str] = field(default_factory=list)

    def track(self, items, description, total=None):
        for item in items:
            self.steps.append(description)
            yield item


def test_files_of_two_runtimes_are_measured_together(three):
    result, _ = three
    (found,) = result.benches
    assert [(one.file.name, one.conditions.runtime) for one in found.measurements] == [
        ("a.tflite", "litert"),
        ("b.tflite", "litert"),
        ("c.onnx", "onnxruntime"),
    ]
    assert len({one.conditions.cores for one in found.measurements}) == 1
    assert (result.device, found.device, result.preset, result.seed) == ("local", "local", "quick", 3)


def test_every_file_has_as_much_as_the_preset_asks(three):
    for one in three[0].benches[0].measurements:
        assert len(one.bursts) == one.summary.bursts == SHORT.rounds
        assert one.summary.runs == sum(len(burst.samples_ms) for burst in one.bursts) >= SHORT.min_runs
        assert sum(sum(burst.samples_ms) for burst in one.bursts) >= 1e3 * SHORT.min_seconds
        assert not any("at least" in reason for reason in one.validity.reasons)


def test_bursts_of_a_round_come_from_the_same_time(three):
    """Every round is over before the next begins, so that what slows one file slows all."""
    found = three[0].benches[0].measurements[:2]  # each session has a clock of its own
    rounds = list(zip(*(one.bursts for one in found), strict=True))
    for before, after in itertools.pairwise(rounds):
        assert max(burst.started_s for burst in before) < min(burst.started_s for burst in after)


def test_each_file_is_compared_with_the_first(three):
    compared = three[0].benches[0].comparisons
    assert [(one.baseline, one.other) for one in compared] == [
        ("a.tflite", "b.tflite"),
        ("a.tflite", "c.onnx"),
    ]
    for one in compared:
        assert one.paired
        assert one.rounds == SHORT.rounds
        assert one.interval.low <= one.speedup <= one.interval.high


def test_the_result_is_written_whole_and_reads_back_the_same(three):
    result, output = three
    assert read_record(output, BenchResult) == result
    assert result.written == str(output)
    assert [file.name for file in output.parent.iterdir()] == ["three.json"]


def test_operators_are_timed_where_the_runtime_can_and_else_the_result_says_so(three):
    litert, _, ort = three[0].benches[0].measurements
    assert {"Conv", "GlobalAveragePool"} <= {one.kind for one in ort.operators}
    assert litert.operators == ()
    assert "no time per operator: litert does not tell" in litert.notes
    assert not any("operator" in note for note in ort.notes)


def test_a_run_is_measured_against_its_dense_files_and_keeps_the_result(tmp_path):
    run = exported_run(tmp_path, ["compressed.onnx", "compressed.tflite", "dense.onnx", "dense.tflite"])
    result = bench([str(run)], preset="quick", cores=(CORE,), runs_dir=tmp_path)
    assert [(one.baseline, one.other) for one in result.benches[0].comparisons] == [
        ("dense.onnx", "compressed.onnx"),
        ("dense.tflite", "compressed.tflite"),
    ]
    assert read_record(run / "bench-local.json", BenchResult) == result


def test_one_file_is_compared_with_nothing_and_written_nowhere(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bench([str(folder / "a.tflite")], preset="quick", cores=())
    assert result.benches[0].comparisons == ()
    assert result.benches[0].measurements[0].conditions.cores == ()
    assert result.written is None
    assert list(tmp_path.iterdir()) == []


# Against an earlier result


def test_an_earlier_result_is_compared_file_by_file_and_unpaired(folder, three):
    result = bench([str(folder / "a.tflite")], preset="quick", against=three[1])
    (compared,) = result.earlier
    assert (compared.baseline, compared.other) == ("a.tflite before", "a.tflite")
    assert not compared.paired
    now, before = result.benches[0].measurements[0], three[0].benches[0].measurements[0]
    assert now.conditions == before.conditions


def with_conditions(result, path, **changes):
    """Writes a result whose files were measured under other conditions."""
    (old,) = result.benches
    measurements = tuple(
        one.model_copy(update={"conditions": one.conditions.model_copy(update=changes)})
        for one in old.measurements
    )
    benches = (old.model_copy(update={"measurements": measurements}),)
    write_record(path, result.model_copy(update={"benches": benches}))
    return path


def test_without_cores_those_of_the_earlier_result_are_taken(folder, three, tmp_path):
    against = with_conditions(three[0], tmp_path / "old.json", cores=())
    result = bench([str(folder / "a.tflite")], preset="quick", against=against)
    assert result.benches[0].measurements[0].conditions.cores == ()
    with pytest.raises(ConfigError, match=rf"cores is \(\) for one and \({CORE},\) for the other"):
        bench([str(folder / "a.tflite")], preset="quick", against=against, cores=(CORE,))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("device", "another machine", "device is 'another machine'"),
        ("runtime_version", "1.0", "runtime version is '1.0'"),
        ("threads", 2, "threads is 2"),
        ("provenance", "emulated", "provenance is 'emulated'"),
    ],
)
def test_other_conditions_are_refused_before_anything_is_measured(
    folder, three, tmp_path, field, value, said
):
    against, noted = with_conditions(three[0], tmp_path / "old.json", **{field: value}), Noted()
    with pytest.raises(ConfigError, match=said):
        bench([str(folder / "a.tflite")], preset="quick", against=against, progress=noted)
    assert noted.steps == []


def test_files_of_other_names_are_refused_with_those_there_are(three, tmp_path):
    other = tflite(tmp_path / "other.tflite")
    with pytest.raises(ConfigError, match=r"holds a\.tflite on local, .*with other\.tflite on local"):
        bench([str(other)], preset="quick", against=three[1])


def test_an_earlier_result_that_is_none_is_refused(folder, tmp_path):
    (tmp_path / "old.json").write_text('{"preset": "quick"}')
    with pytest.raises(ArtefactError, match=r"old\.json: .*edited or cut off"):
        bench([str(folder / "a.tflite")], preset="quick", against=tmp_path / "old.json")


# What is wrong is found before anything is measured


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "pixel99"}, "device 'pixel99' is not known; known are: .*local, .*pixel4"),
        ({"preset": "long"}, "preset 'long' is not known; known are: mlperf, quick, standard"),
        ({"serials": ["A1"]}, "--serial: local is not reached over adb"),
        ({"cores": (4096,)}, "core 4096 may not be used; allowed are"),
    ],
)
def test_a_wrong_option_is_one_line(folder, options, said):
    with pytest.raises(EdgeCompressError, match=said) as caught:
        bench([str(folder / "a.tflite")], **{"preset": "quick"} | options)
    assert "\n" not in str(caught.value)


def test_a_result_that_could_not_be_written_is_not_measured(folder, tmp_path):
    (tmp_path / "file").write_text("")
    for output, kind in ((tmp_path, ConfigError), (tmp_path / "file" / "out.json", ArtefactError)):
        noted = Noted()
        with pytest.raises(kind, match=str(output)):
            bench([str(folder / "a.tflite")], preset="quick", output=output, progress=noted)
        assert noted.steps == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def cut(path):
    return path.read_bytes()[: path.stat().st_size // 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("foreign.onnx", lambda folder: b"not a network"),
        ("empty.onnx", lambda folder: b""),
        ("cut.onnx", lambda folder: cut(folder / "c.onnx")),
        ("renamed.onnx", lambda folder: (folder / "a.tflite").read_bytes()),
        ("foreign.tflite", lambda folder: b"not a network"),
        ("empty.tflite", lambda folder: b""),
        ("cut.tflite", lambda folder: cut(folder / "a.tflite")),
        ("renamed.tflite", lambda folder: (folder / "c.onnx").read_bytes()),
    ],
)
def test_a_file_that_is_no_network_is_one_line_and_leaves_nothing(folder, tmp_path, name, content):
    path, output = tmp_path / name, tmp_path / "out" / "bench.json"
    path.write_bytes(content(folder))
    before = os.sched_getaffinity(0)
    with pytest.raises(ExportError) as caught:
        bench([str(folder / "a.tflite"), str(path)], preset="quick", cores=(CORE,), output=output)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not output.exists()
    assert os.sched_getaffinity(0) == before
