"""`edgecompress recover` as a user meets it: what it prints and writes, killed runs, several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_calls import check_one_line_error, run
from made_recoveries import damage, write_home
from safetensors.torch import load_file

OPTIONS = ("--steps", "24", "--selection-images", "60", "--batch-images", "16")
TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", "localhost:0", "--max-restarts", "2", "--monitor-interval", "0.1"),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_home(folder)
        damage("compress-net-001")
        done = run("recover", *OPTIONS, "--name", "whole")
        assert done.exit_code == 0, done.stderr
        Path("whole.txt").write_text(done.stdout)
    return folder


@pytest.fixture(autouse=True)
def folder(home, monkeypatch):
    monkeypatch.chdir(home)


def weights(name):
    return load_file(f"runs/{name}/weights.safetensors")


def test_it_takes_the_latest_run_and_prints_gains_and_minutes():
    text = Path("whole.txt").read_text()
    assert "recovery of compress-net-001, preset ours" in " ".join(text.split())  # long paths break lines
    assert "gain" in text and "minutes" in text and " pp" in text
    for level in ("none", "stats", "refit", "mimic", "synthetic", "distill", "full"):
        assert f"\n{level}: " in text
    told = json.loads(Path("runs/whole/run.json").read_text())
    assert told["parent"] == "compress-net-001" and told["command"] == "recover"
    assert {"plan.json", "result.json", "weights.safetensors"} <= set(told["outputs"])


def test_runs_are_called_after_the_network_and_can_be_repeated_and_reported():
    first = run("recover", "compress-net-001", *OPTIONS, "--level", "stats", "--json")
    assert first.exit_code == 0, first.stderr
    assert json.loads(first.stdout)["run"] == "runs/recover-net-001"
    again = run("recover", "--config", "runs/recover-net-001", "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["run"] == "runs/recover-net-002"
    assert json.loads(again.stdout)["ladder"][1]["after"] == json.loads(first.stdout)["ladder"][1]["after"]
    shown = run("report", "whole", "--json")
    assert shown.exit_code == 0, shown.stderr
    (report,) = json.loads(shown.stdout)["runs"]
    rungs = {rung["level"]: rung for rung in report["recovery"]}
    assert rungs["refit"]["gain"] is not None and rungs["refit"]["minutes"] >= 0
    assert report["how"] == "recover compress-net-001 up to full, preset ours"


DYING = """
import os, signal, sys
from edgecompress.cli.main import main
from edgecompress.train import loop

take, taken = loop._Training._step_, [0]


def step(self):
    take(self)
    taken[0] += self.judge is not None  # not those that try a learning rate
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and os.environ.get("RANK", "1") == "1" and taken[0] == 9:
        os.kill(os.getpid(), signal.SIGKILL)


loop._Training._step_ = step
main()
"""


def start(*args, launcher=()):
    """Recovers in a process that kills itself in the middle of level full."""
    Path("dying.py").write_text(DYING)
    command = [sys.executable, *launcher, "dying.py", "recover", "compress-net-001", *OPTIONS, *args]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)


def test_killed_it_goes_on_with_the_same_result():
    assert start("--name", "cut").returncode == -9
    assert not Path("runs/cut").exists()
    check_one_line_error(run("recover", "compress-net-001", *OPTIONS, "--name", "cut"), "resume cut")
    done = run("resume", "cut", "--json")
    assert done.exit_code == 0, done.stderr
    one, two = weights("cut"), weights("whole")
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    ladders = [
        json.loads(Path(f"runs/{name}/result.json").read_text())["ladder"] for name in ("cut", "whole")
    ]
    for rung, other in zip(*ladders, strict=True):
        assert rung | {"minutes": 0} == other | {"minutes": 0}
    assert not list(Path("runs").glob(".*"))


@pytest.mark.parametrize("named", [(), ("--name", "over", "--overwrite")])
def test_killed_without_a_name_or_over_another_run_it_goes_on_too(named):
    assert start(*named).returncode == -9
    (left,) = Path("runs").glob(".*.work")
    done = run("resume", left.name.removeprefix(".").removesuffix(".work"), "--json")
    assert done.exit_code == 0, done.stderr
    found = load_file(Path(json.loads(done.stdout)["run"]) / "weights.safetensors")
    assert all(torch.equal(value, weights("whole")[key]) for key, value in found.items())


def test_runs_of_train_are_refused():
    data = json.loads(Path("runs/compress-net-001/run.json").read_text())["options"]["data"]
    options = ("--data", data, "--input-size", "10x10", "--epochs", "0.1", "--name", "learnt")
    done = run("train", "net.py:build", *options)
    assert done.exit_code == 0, done.stderr
    for meant in ("learnt", "runs/learnt"):
        check_one_line_error(run("recover", meant), "learnt: was made by train", "--weights")


def test_two_processes_of_which_one_dies_find_about_what_one_finds():
    done = start("--name", "two", "--json", launcher=TORCHRUN)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # printed by one of them
    whole = json.loads(Path("runs/whole/result.json").read_text())
    assert [rung["kept"] for rung in told["ladder"]] == [rung["kept"] for rung in whole["ladder"]]
    one, two = weights("two"), weights("whole")
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=1e-2, atol=1e-3)


def test_it_learns_in_bfloat16_when_asked():
    options = (*OPTIONS, "--level", "mimic", "--only", "--precision", "bfloat16", "--name", "short")
    done = run("recover", "compress-net-001", *options, "--json")
    assert done.exit_code == 0, done.stderr
    (rung,) = json.loads(done.stdout)["ladder"]
    assert rung["kept"] and rung["steps"] == 24
    assert {one.dtype for one in weights("short").values()} == {
        one.dtype for one in weights("whole").values()
    }


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("nothing",), ("run 'nothing': not found", "compress-net-001")),
        (("--level", "magic"), ("level 'magic' is not known", "distill")),
        (("--level", "full", "--data", "bare.npz"), ("no labels", "levels that work without are", "mimic")),
        (("--preset", "magic"), ("preset 'magic' is not known", "svd-nas")),
        (("--precision", "half"), ("--precision 'half'", "bfloat16")),
        (("--weights", "runs/whole/weights.safetensors"), ("runs/whole/weights.safetensors",)),
    ],
)
def test_what_cannot_be_is_said_in_one_line(args, parts):
    args = args if args[0] == "nothing" else ("compress-net-001", *args)
    check_one_line_error(run("recover", *args, "--name", "x"), *parts)
    assert not Path("runs/x").exists()
