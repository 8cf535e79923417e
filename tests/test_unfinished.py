"""Runs that can be killed and go on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgecompress.core import unfinished
from edgecompress.core.runs import create_run, read_run, work_directory
from edgecompress.core.unfinished import BEGUN_FILE, Start, find_unfinished, resumable_run
from edgecompress.errors import ArtefactError, BudgetError, ConfigError, DeviceError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUNS = Path("runs")


def start(name="r", *, runs_dir=RUNS, inputs=None, overwrite=False, resuming=False, options=None):
    options = {"model": "zoo:a"} if options is None else options
    return Start(runs_dir, "search", name, options, 0, inputs or {}, overwrite, resuming)


def left(runs_dir=RUNS):
    return sorted(path.name for path in runs_dir.iterdir()) if runs_dir.exists() else []


def fail(error, name="r", **more):
    """A run that finishes one step and then fails."""
    with pytest.raises(type(error)) as caught, resumable_run(start(name, **more)) as (_, memo):
        memo.number("step", lambda: 1.0)
        raise error
    return str(caught.value)


def go_on(name="r", **more):
    """Goes on with a run to its end, and returns what it says of its first step."""
    with resumable_run(start(name, resuming=True, **more)) as (run, memo):
        value = memo.number("step", lambda: 2.0)
        (run.directory / "out").write_text("out")
    return value


# How runs end


def test_a_finished_run_leaves_nothing_but_itself():
    with resumable_run(start()) as (run, memo):
        (run.directory / "out").write_text("out")
        memo.number("a", lambda: 1.0)
        assert ".r.work" in left()
    assert left() == ["r"]
    assert read_run(RUNS / "r").outputs == ("out",)


@pytest.mark.parametrize("kind", [DeviceError, ArtefactError])
def test_what_a_device_or_disk_stopped_goes_on(kind):
    said = fail(kind("phone: gone"))
    assert said == "phone: gone; to continue: edgecompress resume r"
    assert left() == [".r.work"]
    assert go_on() == 1.0 and left() == ["r"]


def test_ctrl_c_says_how_to_go_on():
    assert fail(KeyboardInterrupt()) == "to continue: edgecompress resume r"
    assert go_on() == 1.0


def test_the_command_to_go_on_knows_of_another_directory(tmp_path):
    said = fail(DeviceError("gone"), runs_dir=tmp_path / "other")
    assert said.endswith(f"edgecompress resume r --runs-dir {tmp_path / 'other'}")


def test_a_bug_keeps_what_was_finished():
    fail(ZeroDivisionError())
    assert go_on() == 1.0


@pytest.mark.parametrize("kind", [BudgetError, ConfigError])
def test_errors_that_would_come_again_leave_nothing(kind):
    assert fail(kind("no")) == "no"
    assert left() == []


def test_a_device_that_fails_before_any_step_leaves_nothing():
    with pytest.raises(DeviceError, match=r"^gone$"), resumable_run(start()):
        raise DeviceError("gone")
    assert left() == []


# Names


def test_an_unfinished_name_is_taken():
    fail(DeviceError("gone"))
    with pytest.raises(ArtefactError, match=r"edgecompress resume r`, or start over with --overwrite"):
        fail(BudgetError("not reached"))
    assert left() == [".r.work"]


def test_overwrite_begins_anew():
    fail(DeviceError("gone"))
    with resumable_run(start(overwrite=True)) as (_, memo):
        assert memo.number("step", lambda: 3.0) == 3.0
    assert left() == ["r"]


def test_a_finished_name_is_taken_and_stays():
    with resumable_run(start()):
        pass
    with pytest.raises(ArtefactError, match="already exists"), resumable_run(start()):
        raise AssertionError("entered")
    assert left() == ["r"]


def test_automatic_names_pass_over_unfinished_ones():
    with pytest.raises(DeviceError), resumable_run(start(None)) as (_, memo):
        memo.number("step", lambda: 1.0)
        raise DeviceError("gone")
    with resumable_run(start(None)) as (run, _):
        assert run.path.name == "search-a-002"
    assert left() == [".search-a-001.work", "search-a-002"]
    assert go_on("search-a-001") == 1.0


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtefactError, match="--runs-dir"), resumable_run(start(runs_dir=tmp_path / "file")):
        raise AssertionError("entered")


# Going on


def test_a_run_that_was_to_replace_another_still_does():
    with resumable_run(start()) as (run, _):
        (run.directory / "old").write_text("")
    fail(DeviceError("gone"), overwrite=True)
    assert (RUNS / "r" / "old").exists()
    assert go_on() == 1.0
    assert left() == ["r"] and read_run(RUNS / "r").outputs == ("out",)


def test_a_run_that_was_killed_when_it_already_stood_ends_well(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(unfinished, "_remove", lambda work: None)
        with resumable_run(start()) as (run, memo):
            memo.number("step", lambda: 1.0)
            (run.directory / "out").write_text("out")
    assert left() == [".r.work", "r"]
    assert go_on() == 1.0 and left() == ["r"]


def test_the_run_of_another_command_is_not_replaced():
    fail(DeviceError("gone"))
    with create_run(RUNS, command="compress", name="r", options={}, seed=0, inputs={}):
        pass
    with pytest.raises(ArtefactError, match="already exists"):
        go_on()
    assert left() == [".r.work", "r"] and read_run(RUNS / "r").command == "compress"


@pytest.mark.parametrize("inputs", [{"data": "2"}, {}, {"data": "1", "model.py": "3"}])
def test_changed_inputs_are_not_gone_on_with(inputs):
    fail(DeviceError("gone"), inputs={"data": "1"})
    with pytest.raises(ArtefactError, match=r"(data|model\.py) changed .*--overwrite"):
        go_on(inputs=inputs)
    assert go_on(inputs={"data": "1"}) == 1.0


def test_another_version_does_not_go_on(monkeypatch):
    fail(DeviceError("gone"))
    monkeypatch.setattr(unfinished, "__version__", "9.9")
    with pytest.raises(ArtefactError, match=r"this is 9\.9"):
        go_on()


def test_leftovers_of_a_killed_process_are_swept_and_nothing_else():
    fail(DeviceError("gone"))
    for name in (".r.abcd1234", ".r.2.abcd1234", ".r.2.work", ".r-2.abcd1234"):
        (RUNS / name).mkdir()
    (RUNS / ".r.claim").touch()
    assert go_on() == 1.0
    assert left() == [".r-2.abcd1234", ".r.2.abcd1234", ".r.2.work", "r"]


def test_a_run_killed_while_being_replaced_comes_back():
    with resumable_run(start()) as (run, _):
        (run.directory / "old").write_text("")
    fail(DeviceError("gone"), overwrite=True)
    (RUNS / "r").rename(RUNS / ".r.old")
    with pytest.raises(DeviceError), resumable_run(start(resuming=True)):
        raise DeviceError("again")
    assert (RUNS / "r" / "old").exists()
    assert go_on() == 1.0 and left() == ["r"]


def test_work_that_is_half_removed_does_not_count():
    fail(DeviceError("gone"))
    (work_directory(RUNS, "r") / BEGUN_FILE).unlink()
    with resumable_run(start()) as (_, memo):
        assert memo.number("step", lambda: 3.0) == 3.0
    assert left() == ["r"]


# Finding them


def test_the_only_unfinished_run_needs_no_name():
    fail(DeviceError("gone"))
    for name in (None, "r", "runs/r", str(Path("runs/r").resolve())):
        found = find_unfinished(RUNS, name)
        assert (found.begun.name, found.begun.directory) == ("r", str(Path.cwd()))
        assert found.runs_dir.resolve() == RUNS.resolve()


def test_several_must_be_named_and_none_is_told():
    with pytest.raises(ArtefactError, match="no run is unfinished"):
        find_unfinished(RUNS)
    fail(DeviceError("gone"), "a")
    fail(DeviceError("gone"), "b")
    with pytest.raises(ArtefactError, match="a, b; say which"):
        find_unfinished(RUNS)
    with pytest.raises(ArtefactError, match="unfinished are: a, b"):
        find_unfinished(RUNS, "c")
    with resumable_run(start("done")):
        pass
    with pytest.raises(ArtefactError, match="is finished"):
        find_unfinished(RUNS, "done")


# Other processes

HOLDER = """
import sys, time
from pathlib import Path
from edgecompress.core.unfinished import Start, resumable_run
start = Start(Path("runs"), "search", "r", {"model": "zoo:a"}, 0, {}, False, False)
with resumable_run(start) as (run, memo):
    memo.number("step", lambda: 1.0)
    (run.directory / "half").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder():
    """Another process that is working on the run."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resuming": True}])
def test_a_run_another_process_works_on_is_left_alone(holder, how):
    before = left()
    with pytest.raises(ArtefactError, match="another process"), resumable_run(start(**how)):
        raise AssertionError("entered")
    assert left() == before and holder.poll() is None


def test_a_killed_process_lets_go_and_its_run_goes_on(holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert len(left()) == 2  # its work, and the directory it was writing
    assert go_on() == 1.0
    assert left() == ["r"] and read_run(RUNS / "r").outputs == ("out",)


def test_processes_that_come_and_go_never_work_on_one_run_together():
    code = HOLDER.replace("time.sleep(60)", "time.sleep(0.01)").replace("False, False", "True, False")
    script = f"""
from edgecompress.errors import ArtefactError
for _ in range(15):
    try:
        exec({code!r})
    except ArtefactError as error:
        assert "another process" in str(error), error
"""
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL) for _ in range(2)]
    deadline = time.monotonic() + 120
    assert [process.wait(deadline - time.monotonic()) for process in running] == [0, 0]
    assert left() == ["r"]
