"""Clocks that jump: durations come from clocks that only go forward, dates are written down and no more."""

import ast
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_calls import run
from made_tables import SOURCE, write_home

import edgecompress
from edgecompress.core.runs import read_run
from edgecompress.core.store import read_record
from edgecompress.core.train_results import TrainResult

PACKAGE = Path(edgecompress.__file__).parent
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
"""Debian's package faketime."""
NOW = {"now", "today", "utcnow", "time", "time_ns", "ctime", "localtime", "gmtime"}
LONG_S = 300
MODULES = {"time", "datetime", "date"}


def calls_of_the_clock(source):
    """Yields every call that asks what time it is, with the name it is given to as an argument, if any."""
    tree = ast.parse(source)
    given = {one.value: one.arg for one in ast.walk(tree) if isinstance(one, ast.keyword)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if (
                module in MODULES and name in NOW
            ):
                yield ast.unparse(node), given.get(node)


def test_dates_are_only_written_down():
    """Nothing is computed from them: the clock may be wrong, or put right in the middle."""
    found = {
        (str(path.relative_to(PACKAGE)), call, use)
        for path in PACKAGE.rglob("*.py")
        for call, use in calls_of_the_clock(path.read_text())
    }
    assert found and {(call, use) for _, call, use in found} == {("datetime.now(UTC)", "created")}


def test_a_clock_that_is_computed_with_would_be_found():
    found = calls_of_the_clock("start = time.time()\nmade(created=datetime.now(UTC))\nnow = datetime.now()")
    assert sorted(str(use) for _, use in found) == ["None", "None", "created"]


JUMPING = """
import sys
from pathlib import Path
from edgecompress.cli.main import main
from edgecompress.train import loop

clock, step = Path("clock"), loop._Training._step_


def jumps(self):
    clock.write_text("-30y" if self.standing.step % 2 else "+30y")
    step(self)


loop._Training._step_ = jumps
main()
"""
SEVERAL = """
import json, sys
from edgecompress.cli.main import app
for words in json.loads(sys.argv[1]):
    app(words, standalone_mode=False)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_home(tmp_path)
    return tmp_path


@pytest.fixture
def under(tmp_path):
    """Runs Python with another clock, which is what the file `clock` says at the time."""
    if not LIBRARIES:
        pytest.skip("needs Debian's faketime")
    env = os.environ | {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # nobody can set that one
        "OMP_NUM_THREADS": "1",
    }

    def call(clock, script, *words):
        (tmp_path / "clock").write_text(clock)
        command = [sys.executable, "-c", script, *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG_S)

    return call


TRAIN = (
    *("train", SOURCE, "--input-size", "10x10", "--data", "images.npz", "--epochs", "2"),
    *("--batch-images", "16"),
)


def test_a_clock_that_jumps_by_decades_changes_nothing(home, under):
    assert run(*TRAIN, "--name", "steady").exit_code == 0
    jumped = under("+0", JUMPING, *TRAIN, "--name", "jumped")
    assert jumped.returncode == 0, jumped.stderr
    weights = [(home / "runs" / name / "weights.safetensors").read_bytes() for name in ("steady", "jumped")]
    assert weights[0] == weights[1]
    assert abs(read_run(home / "runs" / "jumped").created.year - datetime.now(UTC).year) > 20
    told = read_record(home / "runs" / "jumped" / "result.json", TrainResult)
    assert all(0 <= seconds < LONG_S for seconds in told.seconds.values())


def test_a_board_without_a_battery_thinks_it_is_1970(home, under):
    words = [[*TRAIN, "--name", "old"], ["export", "old", "--onnx", "--no-dense", "--images", "4"]]
    done = under("@1970-01-02 00:00:00", SEVERAL, json.dumps(words))
    assert done.returncode == 0, done.stderr
    assert read_run(home / "runs" / "old").created.year == 1970
    assert list((home / "runs" / "old" / "exports").glob("*.onnx"))
