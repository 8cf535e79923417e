"""`edgecompress runs`: what there is, damaged and unfinished runs too."""

import json
import os
import subprocess
import sys

import pytest
from cli_calls import run, start
from made_benches import bench_of, measurement, result_of
from made_reports import three_runs
from test_report import COMPRESS, text_of

from edgecompress.core.measurement import Validity
from edgecompress.core.report_results import RunsResult
from edgecompress.core.runs import work_directory
from edgecompress.core.store import write_record
from edgecompress.core.unfinished import BEGUN_FILE, Begun
from edgecompress.pipeline.run_list import list_runs


@pytest.fixture
def runs_dir(tmp_path):
    three_runs(tmp_path)
    return tmp_path


def test_every_run_is_listed_with_its_figures_the_oldest_first(runs_dir):
    shrunk, narrowed, found = list_runs(runs_dir=runs_dir).runs
    assert [one.command for one in (shrunk, narrowed, found)] == ["compress", "prune", "search"]
    assert shrunk.created < narrowed.created < found.created
    assert (shrunk.top1, shrunk.top1_before) == (70.5, 71.88) and shrunk.after_ms is None
    assert (shrunk.macs, shrunk.macs_before) == (COMPRESS.compressed.macs, COMPRESS.dense.macs)
    assert (found.before_ms, found.after_ms, found.how_known) == (45.0, 29.5, "emulated")


def test_a_table_says_which_milliseconds_were_not_measured(runs_dir):
    text = run("runs", "--runs-dir", runs_dir).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "29.50 e" in text and "search, torchvision:mobilenet_v2" in text and "70.50" in text


def test_milliseconds_name_their_file_and_say_when_they_are_not_valid(runs_dir):
    doubted = Validity(valid=False, reasons=("other programs use 100 % of the cores",))
    files = [measurement(name, 2.0, validity=doubted) for name in ("dense.tflite", "compressed.tflite")]
    write_record(runs_dir / "shrunk" / "bench-local.json", result_of(bench_of(*files)))
    text = run("runs", "--runs-dir", runs_dir).stdout
    assert " ?  " in text and "ms of compressed.tflite" in text
    assert "shrunk: milliseconds not valid: other programs use 100 % of the cores" in text


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/tmp/tmp123456789/a/long/path/my_net.py:build", "compress, my_net.py:build"),
        ("cells:/tmp/tmp123456789/a/long/path/genotype.json", "compress, cells:genotype.json"),
        ("timm:org/net", "compress, timm:org/net"),
    ],
)
def test_of_a_model_in_a_file_the_list_shows_the_file(runs_dir, model, shown):
    (first, *_) = list_runs(runs_dir=runs_dir).runs
    result = RunsResult(runs_dir="runs", runs=(first.model_copy(update={"model": model}),))
    assert shown in text_of(result)


def test_json_is_the_record(runs_dir):
    listed = json.loads(run("runs", "--runs-dir", runs_dir, "--json").stdout)
    assert [one["name"] for one in listed["runs"]] == ["shrunk", "narrowed", "found"]


def test_a_damaged_run_does_not_hide_the_others(runs_dir):
    (runs_dir / "narrowed" / "result.json").write_text("{")
    _, narrowed, found = list_runs(runs_dir=runs_dir).runs
    assert "result.json" in narrowed.problem and narrowed.macs is None and found.problem is None
    assert "narrowed: " in run("runs", "--runs-dir", runs_dir).stdout


def test_an_unfinished_run_says_how_to_go_on(runs_dir):
    begun = Begun(
        name="half",
        command="search",
        options={"model": "zoo:resnet20"},
        inputs={},
        version="0",
        directory=str(runs_dir),
        overwrite=False,
    )
    work = work_directory(runs_dir, "half")
    work.mkdir()
    write_record(work / BEGUN_FILE, begun)
    half = list_runs(runs_dir=runs_dir).runs[-1]
    assert (half.name, half.finished, half.model, half.created) == ("half", False, "zoo:resnet20", None)
    assert "edgecompress resume half" in " ".join(run("runs", "--runs-dir", runs_dir).stdout.split())


def test_without_runs_it_says_what_makes_one(tmp_path):
    result = run("runs", "--runs-dir", tmp_path / "none")
    assert result.exit_code == 0 and "edgecompress quickstart" in result.stdout
    assert not (tmp_path / "none").exists()


def test_listing_needs_no_torch(runs_dir):
    code = (
        "import sys; from pathlib import Path; from edgecompress.pipeline.run_list import list_runs;"
        f"list_runs(runs_dir=Path({str(runs_dir)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_nothing_but_plain_text_reaches_a_pipe(runs_dir):
    done = start("runs", "--runs-dir", runs_dir)
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "position", "wanted"),
    [("edgecompress ru", 1, {"runs"}), ("edgecompress report --mark", 2, {"--markdown"})],
)
def test_a_shell_completes_commands_and_flags(words, position, wanted):
    environment = os.environ | {
        "_EDGECOMPRESS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(position),
    }
    code = "from edgecompress.cli.main import app; app(prog_name='edgecompress')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert set(done.stdout.split()) == wanted
