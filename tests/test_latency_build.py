"""`edgecompress latency`: tables built for real, on this machine and on the emulated core."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from emulated_core import arm_cache

from edgecompress.core.latency_results import (
    BuildResult,
    CheckResult,
    Forecast,
    TableDifference,
    TableSummary,
)
from edgecompress.core.latency_table import LatencyTable
from edgecompress.pipeline import latency_calibrate
from edgecompress.pipeline.latency_work import measure_plans

__all__ = ["arm_cache"]

MODEL = """
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))
"""
SIZE = ("--input-size", "12x12")
QUICK = ("--plans", "4", "--parts", "lowrank,branches")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a model and its table, which take a while to make."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build()
    return folder


@pytest.fixture(autouse=True)
def folder(home, monkeypatch):
    """The same folder, as it was."""
    monkeypatch.chdir(home)
    before = {path: path.read_bytes() for path in home.iterdir() if path.is_file()}
    yield home
    for path in home.iterdir():
        if path.is_file() and path not in before:
            path.unlink()
    for path, content in before.items():
        path.write_bytes(content)


@pytest.fixture
def arm(arm_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(arm_cache))


def call(kind, *args):
    result = run("latency", *args, "--json")
    assert result.exit_code == 0, result.stderr
    return kind.model_validate_json(result.stdout)


def build(*args, output="t.json"):
    return call(BuildResult, "build", "-m", "small.py:Small", *SIZE, *QUICK, "-o", output, *args)


def read(name="t.json"):
    return LatencyTable.model_validate_json(Path(name).read_text())


def check_table(format, name):
    table = read(name)
    assert (table.provenance, table.format, table.reference_ms is None) == ("measured", format, False)
    assert len(table.entries) > 5
    assert all(one.interval_ms.low <= one.median_ms <= one.interval_ms.high for one in table.entries)
    (calibration,) = table.calibrations
    assert len(calibration.timings) == 5 and calibration.network.endswith("small.py:Small")


def test_a_table_of_this_machine_is_not_measured_again():
    check_table("tflite", "t.json")
    before = read()
    told = call(Forecast, "build", "-m", "small.py:Small", *SIZE, *QUICK, "-o", "t.json", "--dry-run")
    assert (told.known, told.measurements) == (len(before.entries), 0)
    assert build().tables[0].added == 0
    assert read().entries == before.entries
    if not before.calibrations[0].is_doubtful:  # as it may be on a busy machine
        assert told.networks == 0 and read().calibrations == before.calibrations


@pytest.fixture
def busy(monkeypatch):
    """Makes the machine seem busy while whole networks are measured so many times."""

    def make(times: int) -> list[int]:
        sittings, noise = [], random.Random(0)

        def slowed(bench, network, plans):
            sittings.append(len(plans))
            for name, ms in measure_plans(bench, network, plans):
                yield name, ms * (noise.uniform(1, 20) if len(sittings) <= times else 1)

        monkeypatch.setattr(latency_calibrate, "measure_plans", slowed)
        return sittings

    return make


def test_networks_that_were_disturbed_are_measured_again(busy):
    sittings = busy(1)
    (made,) = build("--plans", "8", output="new.json").tables
    assert len(sittings) >= 2 and set(sittings) == {9}
    assert made.calibrations[0].fit_error < 1.0  # 20 times too slow at random would be far more off


def test_a_table_made_on_a_busy_machine_says_so_and_is_mended_by_the_same_command(busy):
    sittings = busy(1 + latency_calibrate.AGAIN)
    (made,) = build("--plans", "8", output="new.json").tables
    assert len(sittings) == 1 + latency_calibrate.AGAIN and made.calibrations[0].is_doubtful
    assert "busy or hot" in run("latency", "show", "new.json").stdout
    again = ("-m", "small.py:Small", *SIZE, *QUICK, "--plans", "8", "-o", "new.json")
    assert call(Forecast, "build", *again, "--dry-run").networks == 9
    before = read("new.json")
    call(BuildResult, "build", *again)
    (mended,) = read("new.json").calibrations
    assert mended.fit_error < before.calibrations[0].fit_error and read("new.json").entries == before.entries


def test_a_table_for_onnxruntime():
    (made,) = build("--format", "onnx", output="o.json").tables
    assert made.added == made.entries
    check_table("onnx", "o.json")


def test_a_table_in_int8():
    (made,) = build("--int8", output="i.json").tables
    assert made.dtype == "int8" and made.entries > 5


def test_what_is_planned_is_told_without_measuring(folder):
    told = call(Forecast, "build", "-m", "small.py:Small", *SIZE, "-o", "new.json", "--dry-run")
    assert told.measurements > 20 and told.networks == 17 and told.seconds > 0
    assert not list(folder.glob("*new*"))


def test_a_grey_model_has_a_table_too(folder):
    (folder / "grey.py").write_text(MODEL.replace("nn.Conv2d(3, 8", "nn.Conv2d(1, 8"))
    grey = ("-m", "grey.py:Small", *SIZE, "--plans", "3")
    call(
        BuildResult, "build", *grey, "--channels", "1", "--classes", "4", "--parts", "lowrank", "-o", "g.json"
    )
    assert read("g.json").calibrations[0].input_shape == (1, 12, 12)
    told = call(CheckResult, "check", "g.json", "-m", "grey.py:Small", "--plans", "3")
    assert told.networks[0].network.endswith("grey.py:Small")  # the table knows its input
    wrong = run("latency", "check", "g.json", *grey, "--channels", "1", "--classes", "7")
    check_one_line_error(wrong, "4 classes, not 7")


def test_a_table_is_shown_compared_and_merged():
    same = ",".join(map(str, read().conditions.cores)) or "any"  # else the idlest, which may be another
    build("--parts", "widths", "--cores", same, output="two.json")
    shown = call(TableSummary, "show", "t.json")
    assert shown.by_kind["pair"] > 5
    for name in ("t.json", "two.json"):
        text = run("latency", "show", name)
        assert text.exit_code == 0 and "MEASURED" in text.stdout
    difference = call(TableDifference, "diff", "t.json", "two.json")
    assert difference.only_first > 0 and difference.only_second > 0 and difference.common > 0
    both = call(TableSummary, "merge", "t.json", "two.json", "-o", "both.json")
    assert both.entries == difference.common + difference.only_first + difference.only_second
    assert run("latency", "diff", "t.json", "both.json").exit_code == 0


def test_predictions_are_checked_on_plans_that_were_not_fitted():
    fitted = {one.plan for one in read().calibrations[0].timings}
    found = call(CheckResult, "check", "t.json", "-m", "small.py:Small", *SIZE, "--plans", "4")
    (network,) = found.networks
    assert len(network.timings) == 4 and not fitted & {one.plan for one in network.timings}
    assert network.mean_error == pytest.approx(sum(abs(one.error) for one in network.timings) / 4)
    text = run(
        "latency", "check", "t.json", "-m", "small.py:Small", *SIZE, "--plans", "3", "--plot", "p.html"
    )
    assert "predicted ms" in text.stdout and "on average" in text.stdout
    assert "plotly" in Path("p.html").read_text().lower()


def test_a_check_takes_the_input_size_of_the_table():
    (network,) = call(CheckResult, "check", "t.json", "-m", "small.py:Small", "--plans", "3").networks
    assert network.network == str(Path("small.py").resolve()) + ":Small"


def test_what_was_measured_is_shown_even_if_its_plot_cannot_be_written():
    args = ("t.json", "-m", "small.py:Small", *SIZE, "--plans", "3", "--plot", "small.py/p.html")
    result = run("latency", "check", *args)
    assert result.exit_code == 1 and "predicted ms" in result.stdout
    assert result.stderr.startswith("edgecompress: small.py/p.html: could not be written")


# The emulated core


def test_an_emulated_table_predicts_whole_networks(arm):
    (made,) = build("--device", "emulated-a76", output="e.json").tables
    assert made.provenance == "emulated" and all(one.interval_ms is None for one in read("e.json").entries)
    found = call(CheckResult, "check", "e.json", "-m", "small.py:Small", *SIZE, "--plans", "5")
    assert found.networks[0].mean_error < 0.03
    assert "EMULATED" in run("latency", "show", "e.json").stdout


def test_an_emulated_build_killed_at_random_ends_the_same(arm, folder):
    build("--device", "emulated-a76", output="whole.json")
    command = [
        sys.executable,
        "-m",
        "edgecompress",
        "latency",
        "build",
        "-m",
        "small.py:Small",
        *SIZE,
        *QUICK,
    ]
    command += ["--device", "emulated-a76", "-o", "killed.json"]
    journal, rng, seen = folder / ".killed.json.journal", random.Random(0), 0
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        wanted = seen + rng.randrange(3, 12)
        while process.poll() is None and lines(journal) < wanted:
            time.sleep(0.005)
        assert process.poll() is None, "ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert lines(journal) >= wanted
        seen = lines(journal)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    killed, whole = read("killed.json"), read("whole.json")
    assert killed.sha256 == whole.sha256 and killed.entries == whole.entries
    assert not list(folder.glob(".killed.json*"))


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


# What users get wrong


@pytest.fixture
def table():
    return json.loads(Path("t.json").read_text())


def write(content, name="bad.json"):
    Path(name).write_text(content if isinstance(content, str) else json.dumps(content))
    return name


def test_bad_tables_are_refused_in_one_line(table):
    whole = json.dumps(table)
    check_one_line_error(run("latency", "show", write(whole[: len(whole) // 2])), "bad.json")
    check_one_line_error(run("latency", "show", write(table | {"schema_version": 2})), "version")
    check_one_line_error(run("latency", "show", write("[]")), "bad.json")
    for ms in (0.0, -1.0):
        entries = [table["entries"][0] | {"median_ms": ms}, *table["entries"][1:]]
        check_one_line_error(run("latency", "show", write(table | {"entries": entries})), "median_ms")
    nan = whole.replace(str(table["entries"][0]["median_ms"]), "NaN", 1)
    check_one_line_error(run("latency", "show", write(nan)), "bad.json")
    entries = [table["entries"][0] | {"median_ms": 1.5}, *table["entries"][1:]]
    check_one_line_error(run("latency", "show", write(table | {"entries": entries})), "edited")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--format", "onnx"), "format"),
        (("--int8",), "dtype"),
        (("--threads", "2", "--cores", "any"), "threads"),
        (("--device", "emulated-a76"), "device"),
    ],
)
def test_a_table_is_not_added_to_under_other_conditions(table, args, said, request):
    if "emulated-a76" in args:
        request.getfixturevalue("arm")
    before = Path("t.json").read_text()
    result = run("latency", "build", "-m", "small.py:Small", *SIZE, *QUICK, "-o", "t.json", *args)
    check_one_line_error(result, "t.json", said)
    assert Path("t.json").read_text() == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("build", "-o", "t.json"), "--model"),
        (("build", "-m", "zoo:nothing", "-o", "t.json"), "nothing"),
        (("build", "-m", "small.py:Small", *SIZE, "-o", "t.json", "--device", "nokia"), "nokia"),
        (("build", "-m", "small.py:Small", *SIZE, "-o", "t.json", "--format", "coreml"), "coreml"),
        (("build", "-m", "small.py:Small", *SIZE, "-o", "t.json", "--parts", "magic"), "magic"),
        (("build", "-m", "small.py:Small", *SIZE, "-o", "."), "directory"),
        (
            (
                "build",
                "-m",
                "small.py:Small",
                *SIZE,
                "-o",
                "t.json",
                "--device",
                "emulated-a76",
                "--format",
                "onnx",
            ),
            "tflite",
        ),
        (("show", "nothing.json"), "latency build"),
        (("merge", "nothing.json", "-o", "x.json"), "two"),
    ],
)
def test_wrong_options_are_told_in_one_line(args, said):
    check_one_line_error(run("latency", *args), said)


def test_a_network_the_table_does_not_know_is_named_with_the_command_to_add_it():
    result = run("latency", "check", "t.json", "-m", "zoo:fashion_resnet", "--plans", "3")
    check_one_line_error(result, "zoo:fashion_resnet", "latency build")


def test_a_build_that_is_stopped_keeps_what_it_measured(folder):
    command = [sys.executable, "-m", "edgecompress", "latency", "build", "-m", "small.py:Small", *SIZE]
    process = subprocess.Popen([*command, "-o", "new.json"], stderr=subprocess.PIPE, text=True)
    journal = folder / ".new.json.journal"
    limit = time.monotonic() + 60
    while time.monotonic() < limit and not (journal.exists() and journal.read_text().count("\n") > 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped" in said
    assert journal.read_text().count("\n") > 3 and not (folder / "new.json").exists()
