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
