"""The commands as a user calls them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run

from edgecompress.cli.running import STOPPED
from edgecompress.pipeline.listing import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_list_shows_names_and_summaries(kind):
    listed = json.loads(run("list", kind, "--json").stdout)
    assert listed["kind"] == kind
    assert listed["items"]
    assert all(item["name"] and item["summary"] for item in listed["items"])
    table = run("list", kind).stdout
    for item in listed["items"]:
        assert item["name"] in table


def test_list_of_an_unknown_kind_names_the_known_ones():
    check_one_line_error(run("list", "colours"), "'colours'", *KINDS)


def test_the_help_of_list_names_all_that_can_be_listed():
    words = re.findall(r"[a-z]+(?:-[a-z]+)*", run("list", "--help").stdout)
    assert not KINDS.keys() - set(words)


def test_doctor_succeeds_where_everything_required_is_installed():
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert {"python", "torch", "disk"} <= {item["name"] for item in json.loads(result.stdout)["items"]}


def test_doctor_fails_when_something_required_is_missing(monkeypatch):
    from edgecompress.pipeline import doctor

    monkeypatch.setitem(doctor.REQUIRED, "no-such-package", "nothing")
    result = run("doctor")
    assert result.exit_code == 1
    assert "no-such-package (required): pip install" in result.stdout


def test_inspect_shows_a_model_as_table_and_as_json():
    as_json = json.loads(run("inspect", "zoo:resnet20", "--json").stdout)
    assert as_json["macs"] == sum(layer["macs"] for layer in as_json["layers"])
    assert "zoo:resnet20" in run("inspect", "zoo:resnet20").stdout


def test_inspect_of_an_unknown_model_names_the_known_ones():
    check_one_line_error(run("inspect", "zoo:resnet21"), "resnet21", "resnet20")


def test_inspect_without_a_model_and_without_a_run_says_what_to_do(tmp_path):
    check_one_line_error(run("inspect", "--runs-dir", tmp_path), "edgecompress compress")


def test_an_unreadable_size_is_one_line():
    check_one_line_error(run("inspect", "zoo:resnet20", "--input-size", "big"), "--input-size", "224x224")


COMPRESS = ("compress", "zoo:fashion_resnet", "--calibration-images", 32, "--selection-images", 32)
QUICKLY = ("--report-images", 64, "--rank-selection", "uniform", "--factors", "plain", "--no-refit")


def test_compress_writes_a_run_that_later_commands_find(tmp_path):
    result = run(*COMPRESS, *QUICKLY, "--runs-dir", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    compressed = json.loads(result.stdout)
    path = Path(compressed["run"])
    assert path.parent == tmp_path
    assert {"plan.json", "weights.safetensors", "run.json"} <= {file.name for file in path.iterdir()}

    latest = json.loads(run("inspect", "--runs-dir", tmp_path, "--json").stdout)
    by_name = json.loads(run("inspect", path.name, "--runs-dir", tmp_path, "--json").stdout)
    assert latest == by_name
    assert latest["macs"] == compressed["compressed"]["macs"] < compressed["dense"]["macs"]

    again = run("compress", "--config", path, "--runs-dir", tmp_path, "--json")
    assert again.exit_code == 0, again.stderr
    repeated = json.loads(again.stdout)
    assert repeated["run"] != compressed["run"]
    assert repeated["plan"] == compressed["plan"]


def test_a_budget_that_is_not_understood_leaves_no_run(tmp_path):
    runs_dir = tmp_path / "runs"
    check_one_line_error(run(*COMPRESS, "--budget", "half", "--runs-dir", runs_dir), "'half'", "macs=50%")
    assert not runs_dir.exists() or not any(runs_dir.iterdir())


SLOW_MODEL = """
import pathlib, time
def build():
    pathlib.Path(__file__).with_suffix(".started").touch()
    time.sleep(60)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_ends_with_one_line_and_leaves_no_run(tmp_path):
    model, started, runs_dir = tmp_path / "slow.py", tmp_path / "slow.started", tmp_path / "runs"
    model.write_text(SLOW_MODEL)
    args = ["compress", f"{model}:build", "--runs-dir", str(runs_dir), "--data", "fashion-mnist"]
    command = [sys.executable, "-m", "edgecompress", *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not started.exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (STOPPED, "", "edgecompress: stopped\n")
    assert not runs_dir.exists() or not any(runs_dir.iterdir())


def test_device_show_says_what_is_known_of_a_device():
    shown = json.loads(run("device", "show", "pixel4", "--json").stdout)
    assert (shown["name"], shown["drivers"]) == ("pixel4", ["adb"])
    text = run("device", "show", "pixel4").stdout
    for fact in shown["facts"]:
        assert fact["about"] in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", ["show", "prepare"])
def test_an_unknown_device_names_the_known_ones(command):
    check_one_line_error(run("device", command, "pixel99"), "'pixel99'", "pixel4", "rpi5")


def test_only_boards_are_prepared():
    check_one_line_error(run("device", "prepare", "local"), "'local'", "needs no runner")


def test_bench_of_nothing_says_how_to_get_something(tmp_path):
    check_one_line_error(run("bench", "--runs-dir", tmp_path), str(tmp_path), "`edgecompress export`")


def test_cores_that_are_not_understood_are_one_line(tmp_path):
    check_one_line_error(run("bench", tmp_path / "a.tflite", "--cores", "big"), "--cores 'big'", "4-7")
