"""`--config`, on a small application with the real option."""

import json
from pathlib import Path

import pytest
import typer
from cli_calls import check_one_line_error
from typer.testing import CliRunner

from edgecompress.cli import options as opt
from edgecompress.core.runs import create_run

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


deep = typer.Typer()
small.add_typer(deep, name="deep")


@deep.command()
def build(seed: opt.Seed = 0, config: opt.Config = None) -> None:
    typer.echo(str(seed))


@deep.command()
def show() -> None:
    pass


def build_with(tmp_path, text):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return CliRunner().invoke(small, ["deep", "build", "--config", str(path)])


def test_a_command_of_a_group_leaves_all_other_tables_alone(tmp_path):
    text = "[build]\nseed = 3\n[show]\nx = 1\n[shrink]\nx = 1\n[look]\nx = 1\n"
    assert build_with(tmp_path, text).stdout == "3\n"
    check_one_line_error(build_with(tmp_path, "[deep]\nseed = 3\n"), "unknown: deep")


def test_a_file_that_says_nothing_about_the_command_is_told_to(tmp_path):
    result = build_with(tmp_path, '[shrink]\nmodel = "a"\n')
    assert (result.exit_code, result.stdout) == (0, "0\n")
    assert result.stderr.strip().endswith("settings.toml: has no settings for deep build")
    assert build_with(tmp_path, "[build]\nseed = 3\n").stderr == ""


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
