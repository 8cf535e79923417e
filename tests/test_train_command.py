"""`edgecompress train` as a user meets it: runs, resumed runs, several processes, refusals."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_calls import check_one_line_error, run
from made_trainings import pixels_and_labels
from safetensors.torch import load_file, save_file

import edgecompress

NET = """
import torch
from torch import nn


def build():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
    )
"""
OPTIONS = (
    *("train", "net.py:build", "--data", "images.npz", "--input-size", "8x8", "--channels", "1"),
    *("--epochs", "3", "--batch-images", "16", "--augment", "crop1,flip", "--lr", "0.05"),
)
TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", "localhost:0", "--max-restarts", "2"),
    *("--monitor-interval", "3"),  # seconds: the other process sees a death before torchrun ends it, too
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    (x, y), (x_test, y_test) = pixels_and_labels(120), pixels_and_labels(60, seed=5)
    np.savez("images.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    save_file({"0.weight": torch.zeros(6, 1, 3, 3)}, "other.safetensors")
    return tmp_path


def weights(name):
    return load_file(f"runs/{name}/weights.safetensors")


def check_close(one, two, tolerance):
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=tolerance, atol=tolerance)


def test_a_run_learns_reloads_and_tells_its_story(home):
    done = run(*OPTIONS, "--name", "one", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    before, after = told["dense"]["accuracy"]["top1"], told["compressed"]["accuracy"]["top1"]
    assert after > before + 10
    assert [row["epoch"] for row in told["epochs"]] == [1, 2, 3]
    assert told["split"] | {"sha256": ""} == told["split"] | {
        "calibration": 108,
        "selection": 12,
        "report": 60,
        "sha256": "",
    }
    network = edgecompress.load("runs/one")
    assert not network.training and network(torch.zeros(1, 1, 8, 8)).shape == (1, 4)
    plainly = ("--factors", "plain", "--no-refit", "--no-local-search", "--batch-norm", "keep")
    again = run(
        "compress", "net.py:build", "--weights", "runs/one/weights.safetensors", *OPTIONS[2:8], *plainly
    )
    assert again.exit_code == 0, again.stderr
    shown = run("report", "one", "--json")
    assert shown.exit_code == 0, shown.stderr
    text = run(*OPTIONS, "--name", "one", "--overwrite")
    assert "before and after training, by plain with sgd" in text.stdout and "selection" in text.stdout


DYING = """
import os, signal, sys
from edgecompress.cli.main import main
from edgecompress.train import loop

take = loop._Training._step_


def step(self):
    take(self)
    sys.stderr.write(f"step {self.standing.step}\\n")  # at once: two processes write
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and os.environ.get("RANK", "1") == "1" and self.standing.step == 10:
        os.kill(os.getpid(), signal.SIGKILL)


loop._Training._step_ = step
main()
"""


def start(*args, launcher=()):
    """Trains in a process that kills itself in the middle of the second epoch."""
    Path("dying.py").write_text(DYING)
    command = [sys.executable, *launcher, "dying.py", *OPTIONS, *args]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=400, check=False)


def test_killed_it_goes_on_with_the_same_result(home):
    assert run(*OPTIONS, "--name", "whole").exit_code == 0
    assert start("--name", "cut").returncode == -9
    assert not Path("runs/cut").exists()
    (kept,) = Path("runs").glob(".*/**/training.safetensors")
    right = kept.read_bytes()
    kept.write_bytes(Path("other.safetensors").read_bytes())
    check_one_line_error(run("resume", "cut"), "training.safetensors")
    kept.write_bytes(right)
    done = run("resume", "cut", "--json")
    assert done.exit_code == 0, done.stderr
    check_close(weights("cut"), weights("whole"), 0)
    assert not list(Path("runs").glob(".*"))


def test_two_processes_of_which_one_dies_find_what_one_finds(home):
    assert run(*OPTIONS, "--name", "one").exit_code == 0
    done = start("--name", "two", "--json", launcher=TORCHRUN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "runs/two"  # printed by one of them
    assert "edgecompress: torchrun: another process has ended" in done.stderr
    assert done.stderr.count("step 1\n") == 2  # both began once: they went on from a checkpoint
    check_close(weights("two"), weights("one"), 1e-4)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["one", "two"]


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (("--method", "magic"), ("method 'magic' is not known", "plain")),
        (("--optimizer", "magic"), ("optimizer 'magic' is not known", "pugd")),
        (("--epochs", "0"), ("--epochs 0", "above 0")),
        (("--schedule", "up"), ("schedule 'up'", "cosine")),
        (("--augment", "turn"), ("--augment 'turn'", "crop4")),
        (("--ema", "2"), ("--ema 2", "below 1")),
        (("--norms", "off"), ("--norms 'off'", "frozen")),
        (("--smoothing", "1"), ("--smoothing 1",)),
        (("--precision", "half"), ("--precision 'half'", "bfloat16")),
        (("--teacher", "zoo:none"), ("zoo model 'none' is not known",)),
        (("--training-images", "900"), ("912 asked for", "ask for fewer")),
        (("--lr", "1e30", "--selection-images", "0"), ("the loss is not finite", "lower --lr")),
        (("--radius", "isin:0:2", "--optimizer", "pugd"), ("--radius isin", "must be above 0")),
        (("--radius", "isin:-1:2", "--optimizer", "pugd"), ("--radius isin", "must be 0 or more")),
        (("--scale", "icos:2:0", "--optimizer", "pugd"), ("--scale icos", "must be above 0")),
        (("--weights", "other.safetensors"), ("other.safetensors: does not fit the model", "missing")),
    ],
)
def test_what_cannot_be_is_said_in_one_line(home, more, parts):
    check_one_line_error(run(*OPTIONS, *more), *parts)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize("method", ["plain", "decomposable"])
def test_a_training_that_diverges_ends_keeps_the_best_and_says_so(home, method):
    done = run(*OPTIONS, "--method", method, "--lr", "1e30", "--name", "one", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["best_epoch"] == 0 and "diverged" in json.dumps(told["steps"])
    assert told["compressed"]["accuracy"] == told["dense"]["accuracy"]
    assert all(value.isfinite().all() for value in weights("one").values())


def test_it_learns_in_bfloat16_and_keeps_float32_weights(home):
    done = run(*OPTIONS, "--precision", "bfloat16", "--name", "short", "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["compressed"]["accuracy"]["top1"] > told["dense"]["accuracy"]["top1"] + 10
    assert run(*OPTIONS, "--name", "long").exit_code == 0
    short, long = weights("short"), weights("long")
    assert {one.dtype for one in short.values()} == {one.dtype for one in long.values()}
    assert not torch.equal(short["0.weight"], long["0.weight"])


def test_images_without_labels_are_refused(home):
    np.savez("bare.npz", x_train=pixels_and_labels(40)[0], x_test=pixels_and_labels(20)[0])
    check_one_line_error(run(*OPTIONS, "--data", "bare.npz"), "without labels")


def test_a_teacher_is_learned_from(home):
    run(*OPTIONS, "--name", "teacher")
    told = []
    for more in ((), ("--teacher", "runs/teacher", "--teacher-weight", "1")):
        done = run(*OPTIONS, "--seed", "3", "--json", *more)
        assert done.exit_code == 0, done.stderr
        told.append(json.loads(done.stdout)["epochs"][-1]["loss"])
    assert told[1] != told[0] and told[1] < told[0]  # what the teacher says is soft: less is left to lose


def test_time_is_told_and_nothing_is_left_behind(home):
    begun = time.perf_counter()
    done = run(*OPTIONS, "--name", "one", "--json")
    assert 0 < json.loads(done.stdout)["seconds"]["training"] < time.perf_counter() - begun
    assert [path.name for path in Path("runs").iterdir()] == ["one"]
