"""`edgecompress search` under torchrun: one run, the same plan as of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_tables import SOURCE, write_home

ARGS = (
    *("search", "-m", SOURCE, "--input-size", "10x10", "--data", "images.npz", "--latency-table", "t.json"),
    *("--search", "hybrid", "--target-speedup", "1.3", "--rounds", "0", "--json"),
)
TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", "localhost:0"),
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_home(tmp_path)
    return tmp_path


def start(*launcher, name):
    command = [sys.executable, *launcher, "-m", "edgecompress", *ARGS, "--name", name]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(Path.cwd())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # one result, printed once


def test_two_processes_write_one_run_with_the_plan_of_one(home):
    one, two = start(name="one"), start(*TORCHRUN, name="two")
    assert two["plan"] == one["plan"]
    assert two["steps"] == one["steps"]
    assert "best after a short repair" in dict(one["steps"])
    assert sorted(p.name for p in Path("runs").iterdir()) == ["one", "two"]
    assert not list(home.glob("tmp*"))  # what the other process needed is gone


def test_what_the_first_process_cannot_do_ends_all(home):
    start(name="one")
    command = [sys.executable, *TORCHRUN, "-m", "edgecompress", *ARGS, "--name", "one"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and done.stdout == ""
    assert "edgecompress: runs/one: already exists" in done.stderr
