"""`edgecompress resume`: killed at any moment, a search ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from made_tables import SOURCE, write_home

from edgecompress.core.unfinished import BEGUN_FILE
from edgecompress.errors import DeviceError
from edgecompress.pipeline import search_job
from edgecompress.pipeline.resume import typed_options
from edgecompress.pipeline.search import search

SEARCH = (
    "search",
    "-m",
    SOURCE,
    "--input-size",
    "10x10",
    "--data",
    "images.npz",
    "--latency-table",
    "t.json",
)
OPTIONS = ("--search", "exact", "--rounds", "0", "--target-speedup", "1.3")
WORK = Path("runs/.killed.work")
RESULT = ("plan.json", "weights.safetensors")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a model and a run of it that was never interrupted."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_home(folder)
        assert run(*SEARCH, *OPTIONS, "--name", "whole").exit_code == 0
    return folder


@pytest.fixture(autouse=True)
def folder(home, monkeypatch):
    monkeypatch.chdir(home)
    yield home
    for left in home.glob("runs/*killed*"):
        subprocess.run(["rm", "-r", str(left)], check=True)


def command():
    return [sys.executable, "-m", "edgecompress", *SEARCH, *OPTIONS]


def stop_when(pattern, sign):
    """Starts a search and sends it a signal as soon as there is such a file; returns what it said."""
    process = subprocess.Popen(
        [*command(), "--name", "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not list(WORK.glob(pattern)):
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()[1]
    os.kill(process.pid, sign)
    return process.communicate()[1], process.returncode


def check_same_as_whole():
    for file in RESULT:
        assert (Path("runs/killed") / file).read_bytes() == (Path("runs/whole") / file).read_bytes()
    assert sorted(path.name for path in Path("runs").iterdir()) == ["killed", "whole"]


@pytest.fixture
def unfinished(monkeypatch):
    """A search whose device failed when all was prepared."""
    with monkeypatch.context() as patch:
        patch.setattr(search_job, "close_loop", _fail)
        check_one_line_error(run(*SEARCH, *OPTIONS, "--name", "killed"), "edgecompress resume killed")


def _fail(*args):
    raise DeviceError("gone")


def test_a_search_that_was_killed_ends_the_same():
    stop_when("network*.json", signal.SIGKILL)
    check_one_line_error(run(*SEARCH, *OPTIONS, "--name", "killed"), "edgecompress resume killed")
    result = run("resume", "killed")
    assert result.exit_code == 0, result.stderr
    check_same_as_whole()


def test_a_search_that_was_stopped_says_how_to_go_on_and_does_from_any_folder(folder, tmp_path, monkeypatch):
    said, code = stop_when("errors*", signal.SIGINT)
    assert (said, code) == ("edgecompress: stopped; to continue: edgecompress resume killed\n", 130)
    monkeypatch.chdir(tmp_path)
    result = run("resume", "--runs-dir", folder / "runs")
    assert result.exit_code == 0, result.stderr
    assert Path.cwd() == tmp_path and not list(tmp_path.iterdir())
    monkeypatch.chdir(folder)
    check_same_as_whole()


@pytest.mark.parametrize("name", ["small.py", "images.npz", "t.json"])
def test_what_changed_in_between_is_named(name, folder, unfinished):
    before = Path(name).read_bytes()
    begun = (WORK / BEGUN_FILE).read_bytes()
    try:
        if name == "small.py":
            Path(name).write_bytes(before + b"\n# changed\n")
        else:
            (WORK / BEGUN_FILE).write_bytes(_with_another_hash(begun, name))
        check_one_line_error(run("resume", "killed"), name, "changed since", "--overwrite")
    finally:
        Path(name).write_bytes(before)
    assert (WORK / "dense.json").is_file()


def _with_another_hash(begun, name):
    """`begun.json` as if another file had been read: changing images or tables gives other errors first."""
    found = json.loads(begun)
    (key,) = (one for one in found["inputs"] if one.endswith(name))
    found["inputs"][key] = "0" * 64
    return json.dumps(found).encode()


def test_a_folder_that_is_gone_is_told(folder, unfinished):
    text = (WORK / BEGUN_FILE).read_text()
    (WORK / BEGUN_FILE).write_text(text.replace(str(folder), "/gone"))
    check_one_line_error(run("resume"), "was begun in /gone")


def test_nothing_to_go_on_with_is_one_line(tmp_path):
    check_one_line_error(run("resume"), "no run is unfinished")
    check_one_line_error(run("resume", "whole"), "runs/whole: is finished")
    check_one_line_error(run("resume", "--runs-dir", tmp_path / "none"), "no run is unfinished")
    assert not (tmp_path / "none").exists()


def test_options_come_back_from_json_with_their_types():
    told = {"methods": ["lowrank"], "input_size": [8, 8], "benchmark_binary": "a/b", "mean": None, "odd": 1}
    assert typed_options(search, told) == {
        "methods": ("lowrank",),
        "input_size": (8, 8),
        "benchmark_binary": Path("a/b"),
        "mean": None,
    }
