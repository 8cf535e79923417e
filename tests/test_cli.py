import inspect
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import edgecompress
from edgecompress.cli import compress as compress_commands
from edgecompress.cli import look as look_commands
from edgecompress.cli import options as opt
from edgecompress.cli.main import app
from edgecompress.cli.running import STOPPED, one_line_errors, running
from edgecompress.core.runs import create_run
from edgecompress.errors import ConfigError

COMMANDS = ["quickstart", "inspect", "compress", "list", "doctor"]
KINDS = ["models", "methods", "factors", "rank-selections", "data", "devices"]


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def start(*args, **more):
    return subprocess.run(
        [sys.executable, "-m", "edgecompress", *map(str, args)], capture_output=True, text=True, **more
    )


def check_one_line_error(result, *parts):
    """The law of errors: exit code 1, nothing on stdout, one line on stderr that begins with our name."""
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("edgecompress: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


# Help


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_explains_the_command(command):
    result = run(*([command] if command else []), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command", ["quickstart", "inspect", "compress", "list"])
def test_help_has_examples_on_lines_of_their_own(command):
    lines = run(command, "--help").stdout.splitlines()
    assert [line for line in lines if line.startswith(f"    edgecompress {command} ")]


def test_help_comes_within_half_a_second():
    def cpu_seconds():
        before = os.times()
        assert start("compress", "--help").returncode == 0
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    # processor time, because on a busy machine the clock measures the neighbours
    assert min(cpu_seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_does_not_wait_for_torch(command):
    args = [*([command] if command else []), "--help"]
    code = f"""
import sys
from edgecompress.cli.main import app
try:
    app({args!r})
except SystemExit as end:
    assert end.code == 0
print([name for name in ("torch", "numpy", "rich", "pydantic") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version_is_that_of_the_package():
    assert run("--version").stdout == f"edgecompress {edgecompress.__version__}\n"
    assert start("--version").stdout == f"edgecompress {edgecompress.__version__}\n"


@pytest.mark.parametrize("args", [["no-such-command"], ["list"], ["compress", "--no-such-flag"]])
def test_wrong_usage_is_exit_code_2(args):
    assert run(*args).exit_code == 2


# Flags and keyword arguments


def cli_and_api():
    from edgecompress.pipeline.compress import compress
    from edgecompress.pipeline.inspect import inspect as inspect_model
    from edgecompress.pipeline.quickstart import quickstart

    return {
        "compress": (compress_commands.compress, compress),
        "quickstart": (compress_commands.quickstart, quickstart),
        "inspect": (look_commands.inspect, inspect_model),
    }


ONLY_IN_CLI = {"config", "as_json"}
ONLY_IN_API = {"progress"}


@pytest.mark.parametrize("command", ["compress", "quickstart", "inspect"])
def test_flags_and_keyword_arguments_have_the_same_names_and_defaults(command):
    cli, api = (inspect.signature(function).parameters for function in cli_and_api()[command])
    only_in_cli = ONLY_IN_CLI | ({"runs_dir"} if command == "inspect" else set())
    assert set(cli) - only_in_cli == set(api) - ONLY_IN_API
    for name in set(cli) & set(api) - {"model"}:
        as_typed = cli[name].default
        if isinstance(api[name].default, tuple):
            as_typed = opt.parse_names(as_typed)
        assert as_typed == api[name].default, name


@pytest.mark.parametrize(
    ("text", "size"), [("224x160", (224, 160)), ("224,160", (224, 160)), (" 1 x 2 ", (1, 2)), (None, None)]
)
def test_sizes_are_height_and_width(text, size):
    assert opt.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "224", "0x5", "-1x5", "axb", "1x2x3", "1.5x2"])
def test_a_size_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="224x224"):
        opt.parse_size(text)


def test_numbers_and_names_are_separated_by_commas():
    assert opt.parse_numbers("0.5, 0.25", flag="--mean") == (0.5, 0.25)
    assert opt.parse_numbers(None, flag="--mean") is None
    assert opt.parse_names("S1, S4(8),") == ("S1", "S4(8)")
    assert opt.parse_names(None) == ()
    with pytest.raises(ConfigError, match="--mean"):
        opt.parse_numbers("0.5,,1", flag="--mean")


# --config, on a small application with the real option


small = typer.Typer()


@small.command()
def shrink(
    model: str,
    budget: opt.Budget = "macs=50%",
    refit: bool = True,
    mean: str | None = None,
    runs_dir: opt.RunsDir = Path("runs"),
    seed: opt.Seed = 0,
    config: opt.Config = None,
    as_json: opt.AsJson = False,
) -> None:
    values = {"model": model, "budget": budget, "refit": refit, "mean": mean, "seed": seed, "json": as_json}
    typer.echo(json.dumps(values | {"runs_dir": runs_dir.as_posix()}))


@small.command()
def look() -> None:
    pass


def shrink_with(tmp_path, text, *args):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return CliRunner().invoke(small, ["shrink", "--config", str(path), *args])


def test_settings_of_a_file_become_defaults(tmp_path):
    text = """
model = "zoo:a"
refit = false
mean = [0.5, 0.25]
json = true
[shrink]
runs-dir = "out"
[look]
unknown = 1
"""
    values = json.loads(shrink_with(tmp_path, text).stdout)
    assert values == {
        "model": "zoo:a",
        "budget": "macs=50%",
        "refit": False,
        "mean": "0.5,0.25",
        "seed": 0,
        "json": True,
        "runs_dir": "out",
    }


@pytest.mark.parametrize("flags_first", [True, False])
def test_flags_win_over_the_file(tmp_path, flags_first):
    path = tmp_path / "settings.toml"
    path.write_text('model = "zoo:a"\nbudget = "params=10%"\nseed = 3\nrefit = false\n')
    flags, config = ["zoo:b", "--seed", "7", "--refit"], ["--config", str(path)]
    args = flags + config if flags_first else config + flags
    values = json.loads(CliRunner().invoke(small, ["shrink", *args]).stdout)
    assert (values["model"], values["budget"], values["seed"], values["refit"]) == (
        "zoo:b",
        "params=10%",
        7,
        True,
    )


def test_a_flag_back_at_its_default_still_wins_over_the_file(tmp_path):
    values = json.loads(shrink_with(tmp_path, 'model = "a"\nseed = 3\nrefit = false\n', "--seed", "0").stdout)
    assert (values["seed"], values["refit"]) == (0, False)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            'model = "a"\nbugdet = 1',
            ["bugdet", "known are: budget, json, mean, model, refit, runs_dir, seed"],
        ),
        ('config = "b.toml"', ["unknown: config"]),
        ("seed = '3'", ["seed", "integer"]),
        ("seed = ", ["settings.toml"]),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, parts):
    check_one_line_error(shrink_with(tmp_path, text), *parts)


def test_a_value_out_of_range_is_refused_from_a_file_too(tmp_path):
    result = shrink_with(tmp_path, 'model = "a"\nseed = -1\n')
    assert result.exit_code == 2
    assert "--seed" in result.stderr


def test_a_run_can_be_repeated_from_its_record(tmp_path):
    options = {"model": "zoo:a", "budget": "macs=20%", "mean": (0.5, 0.25), "refit": False, "seed": 5}
    with create_run(tmp_path, command="shrink", options=options, seed=5, inputs={}) as made:
        pass
    values = json.loads(CliRunner().invoke(small, ["shrink", "--config", str(made.path)]).stdout)
    assert {key: values[key] for key in options} == options | {"mean": "0.5,0.25"}


# What surrounds a command


def test_an_error_of_several_lines_is_shown_in_one(capsys):
    with pytest.raises(typer.Exit) as caught, one_line_errors():
        raise ConfigError("model: first\n   second")
    assert caught.value.exit_code == 1
    assert capsys.readouterr() == ("", "edgecompress: model: first second\n")


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), one_line_errors():
        raise ZeroDivisionError


def test_stopping_is_one_line_and_exit_code_130(capsys):
    with pytest.raises(typer.Exit) as caught, running():
        raise KeyboardInterrupt
    assert caught.value.exit_code == STOPPED == 130
    assert capsys.readouterr() == ("", "edgecompress: stopped\n")


def test_libraries_neither_warn_nor_write_to_stdout(capsys, monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", [])
    with running():
        warnings.warn("for programmers", stacklevel=1)
        sys.stdout.write("chatter\n")
    assert capsys.readouterr() == ("", "chatter\n")


# The commands


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
QUICKLY = ("--report-images", 64, "--no-local-search", "--batch-norm", "keep")


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
