"""What goes wrong around latency tables: each is one line that says what to do, and nothing is lost."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from emulated_core import arm_cache
from test_latency_keys import CONDITIONS, HEADING, entry, pair, table

from edgecompress.core.device import Device
from edgecompress.core.latency_results import Forecast
from edgecompress.core.latency_table import LatencyTable, table_hash
from edgecompress.core.measurement import Burst
from edgecompress.core.store import write_record
from edgecompress.devices.contract import Driver, Loaded, Options
from edgecompress.errors import ArtefactError, ExportError
from edgecompress.latency.journal import Journal, NetworkEntry, journal_path, locked
from edgecompress.pipeline.latency_files import table_heading
from edgecompress.pipeline.latency_measure import Place
from edgecompress.pipeline.latency_work import Bench

__all__ = ["arm_cache"]

MODEL = """
from torch import nn


def small():
    first, second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
"""
SMALL = ("-m", "small.py:small", "--input-size", "4x4", "--parts", "lowrank", "--plans", "3")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a model and a table of a made-up device."""
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(MODEL)
    write_record(Path("t.json"), table(entry(pair(4), 1.0), entry(pair(8), 2.0)), indent=None)
    return tmp_path


def read(name):
    return LatencyTable.model_validate_json(Path(name).read_text())


# Tables


def test_a_table_of_another_version_says_which_and_what_to_do():
    Path("v2.json").write_text(Path("t.json").read_text().replace('"schema_version":1', '"schema_version":2'))
    check_one_line_error(run("latency", "show", "v2.json"), "v2.json: is of version 2", "reads 1", "again")


def test_an_edited_table_says_so_once():
    Path("e.json").write_text(Path("t.json").read_text().replace('"median_ms":2.0', '"median_ms":1.9'))
    result = run("latency", "show", "e.json")
    check_one_line_error(result, "e.json: the hash does not fit the content")
    assert result.stderr.count("edited") == 1


@pytest.mark.parametrize("device", ["theirs.toml", "../theirs", "/etc/theirs.toml", "a\\b"])
def test_a_table_does_not_say_which_device_file_is_read(device):
    """Even where its hash fits: a device file says what is reached, and what is run there."""
    bad = read("t.json").model_copy(update={"device": device})
    bad = bad.model_copy(update={"sha256": table_hash(bad)})
    write_record(Path("bad.json"), bad, indent=None)
    Path("theirs.toml").write_text('title = "Theirs"\ndrivers = ["board"]\nhost = "them"\n')
    for command in ("show", "check"):
        words = ("latency", command, "bad.json", *(("-m", "small.py:small") if command == "check" else ()))
        check_one_line_error(run(*words), "bad.json: device: is a path")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "other"}, "device 'other', not 'made-up'"),
        ({"dtype": "int8"}, "dtype 'int8', not 'float32'"),
        ({"format": "onnx"}, "format 'onnx', not 'tflite'"),
        ({"conditions": {"threads": 4}}, "threads is 4"),
        ({"conditions": {"runtime": "onnxruntime"}}, "runtime is"),
        ({"conditions": {"runtime_version": "3"}}, "runtime version is"),
    ],
)
def test_tables_that_are_not_alike_are_not_merged(changes, said):
    conditions = CONDITIONS.model_copy(update=changes.get("conditions", {}))
    other = table(entry(pair(16), 3.0), **{**changes, "conditions": conditions})
    write_record(Path("o.json"), other, indent=None)
    check_one_line_error(run("latency", "merge", "t.json", "o.json", "-o", "x.json"), "o.json: is of", said)
    assert not Path("x.json").exists()


def test_a_table_of_a_device_that_is_not_known_lists_those_that_are():
    result = run("latency", "build", *SMALL, "-o", "new.json", "--device", "made-up")
    check_one_line_error(result, "'made-up' is not known", "emulated-a76", "local")


def test_a_table_without_calibrations_cannot_be_checked():
    check_one_line_error(run("latency", "check", "t.json"), "t.json: is calibrated for no network", "build")


# Options


@pytest.mark.parametrize("plans", ["0", "1", "-5"])
@pytest.mark.parametrize("command", [("build", *SMALL, "-o", "x.json"), ("check", "t.json")])
def test_too_few_plans_are_refused(command, plans):
    check_one_line_error(run("latency", *command, "--plans", plans), f"--plans {plans}", "at least 3")


@pytest.mark.parametrize("parts", ["magic", "lowrank,magic", ""])
def test_unknown_parts_are_told_with_all_that_are_known(parts):
    result = run("latency", "build", *SMALL, "-o", "x.json", "--parts", parts)
    check_one_line_error(result, "--parts", "branches, dimensions, lowrank, tucker2, widths")


@pytest.mark.parametrize("change", [("--int8",), ("--format", "onnx"), ()])
def test_a_dry_run_finds_a_table_of_something_else(change):
    check_one_line_error(
        run("latency", "build", *SMALL, "-o", "t.json", "--dry-run", *change), "t.json: is of"
    )


def test_a_dry_run_knows_what_an_interrupted_build_has_measured():
    journal = Journal(journal_path(Path("new.json")), HEADING.model_copy(update={"device": "local"}))
    before = run("latency", "build", *SMALL, "-o", "new.json", "--dry-run", "--json")
    journal.add(entry(pair(8), 2.0))
    after = run("latency", "build", *SMALL, "-o", "new.json", "--dry-run", "--json")
    known = [Forecast.model_validate_json(one.stdout).known for one in (before, after)]
    assert known == [0, 1]


# Where it is written


@pytest.mark.parametrize("output", ["small.py/t.json", "/proc/nowhere/t.json"])
@pytest.mark.parametrize("command", [("build", *SMALL), ("merge", "t.json", "t.json")])
def test_an_output_that_cannot_be_written_is_told_before_anything_is_measured(command, output):
    check_one_line_error(run("latency", *command, "-o", output), f"{output}: could not be written", "another")


def test_folders_of_an_output_are_made():
    result = run("latency", "merge", "t.json", "t.json", "-o", "some/where/both.json")
    assert result.exit_code == 0, result.stderr
    assert read("some/where/both.json").entries == read("t.json").entries
    assert [path.name for path in Path("some/where").iterdir()] == ["both.json"]


@pytest.mark.parametrize("command", [("build", *SMALL), ("merge", "t.json", "t.json")])
def test_a_table_is_written_by_one_at_a_time(folder, command):
    before = Path("t.json").read_bytes()
    with locked(Path("t.json")):
        check_one_line_error(run("latency", *command, "-o", "t.json"), "t.json: another build", "wait")
    assert Path("t.json").read_bytes() == before
    assert not list(folder.glob(".t.json*"))


def test_a_lock_is_free_again_and_leaves_what_was_measured():
    with pytest.raises(KeyboardInterrupt), locked(Path("a.json")) as path:
        Journal(path, HEADING).add(entry(pair(4), 1.0))
        raise KeyboardInterrupt
    with locked(Path("a.json")) as path:
        assert Journal(path, HEADING).entries.keys() == {entry(pair(4), 1.0).key}
        Journal(path, HEADING).remove()
        with locked(Path("a.json")) as other:  # its file is gone: nobody holds it
            assert other == path


def test_a_journal_with_times_that_cannot_be_is_damaged():
    path = journal_path(Path("a.json"))
    Journal(path, HEADING).add(entry(pair(4), 1.0))
    path.write_text(path.read_text().replace('"median_ms":1.0', '"median_ms":0.0'))
    with pytest.raises(ArtefactError, match="damaged; move it away"):
        Journal(path, HEADING)


# Devices


class FakeSession:
    """A device on which every file takes a millisecond but a bad one."""

    conditions = CONDITIONS
    fresh_process = False

    def load(self, file):
        if file.read_bytes() == b"bad":
            raise ExportError(f"{file.name}: cannot be run")
        return Loaded(load_ms=None, first_ms=None, notes=())

    def burst(self, file, size):
        self.load(file)
        same = dict.fromkeys(("median_ms", "mean_ms", "min_ms", "max_ms"), 1.0)
        return Burst(started_s=0.0, runs=1, samples_ms=(1.0,), std_ms=0.0, **same)


@contextlib.contextmanager
def opened(device, options):
    yield FakeSession()


@pytest.mark.parametrize("reference_ms", [None, 1.0])
def test_a_file_that_cannot_be_run_is_named_by_what_is_in_it(reference_ms):
    device = Device(name="made-up", title="made up", drivers=("made-up",))
    place = Place(device, Driver("made-up", "made up", (".tflite",), opened), Options(), ".tflite")
    bench = Bench(place, HEADING.model_copy(update={"reference_ms": reference_ms}), 0)
    good, bad = (lambda file, text=text: file.write_text(text) for text in ("good", "bad"))
    assert [timing.median_ms for _, timing in bench.timings([good, good])] == [1.0, 1.0]
    with pytest.raises(ExportError, match=r"^conv 3>4: \d\.tflite: cannot be run$"):
        list(bench.timings([good, bad], ["linear 2>2", "conv 3>4"]))


def test_a_qemu_that_disappears_leaves_what_was_counted(arm_cache, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(arm_cache))
    qemu = folder / "bin" / "qemu-aarch64"
    qemu.parent.mkdir()
    there = f'echo >> calls; [ $(wc -l < calls) -lt 20 ] || rm -f "{qemu}"'
    qemu.write_text(f'#!/bin/sh\n(cd "{folder}"; {there})\nexec {shutil.which("qemu-aarch64")} "$@"\n')
    qemu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{qemu.parent}:/nowhere")
    for name in ("sh", "wc", "rm"):
        (qemu.parent / name).symlink_to(shutil.which(name, path="/usr/bin:/bin"))
    command = ("latency", "build", *SMALL, "-o", "e.json", "--device", "emulated-a76")
    check_one_line_error(run(*command), "apt-get install qemu-user", "kept, run the same command to go on")
    kept = journal_path(Path("e.json")).read_text().splitlines()
    assert len(kept) > 2 and not Path("e.json").exists()


# Resuming


def test_a_network_measured_under_another_plan_of_that_name_is_measured_again(arm_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(arm_cache))
    command = ("latency", "build", *SMALL, "-o", "l.json", "--device", "emulated-a76")
    assert run(*command).exit_code == 0
    made = read("l.json")
    (calibration,) = made.calibrations
    Path("l.json").unlink()
    journal = Journal(journal_path(Path("l.json")), table_heading(made))
    for one in made.entries:
        journal.add(one)
    other = {"network": calibration.network, "input_shape": calibration.input_shape, "measured_ms": 1e6}
    for timing in calibration.timings:
        journal.add(NetworkEntry(plan=timing.plan, **other))
    assert run(*command).exit_code == 0
    (again,) = read("l.json").calibrations
    assert [one.plan for one in again.timings] == [one.plan for one in calibration.timings]
    assert all(one.measured_ms < 1e3 for one in again.timings)
    assert read("l.json").entries == made.entries
