"""`edgecompress init`: a file of settings that its commands understand."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from cli_calls import check_one_line_error, run
from tiny_zoo import entry, in_zoo
from typer.main import get_command

from edgecompress.cli.init import COMMANDS, NOT_SETTINGS
from edgecompress.cli.main import app


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with in_zoo(entry("tiny", tmp_path / ".."), entry("blind", tmp_path / "..", images=False)):
        yield tmp_path


def test_the_file_holds_what_was_given_for_every_command():
    result = run("init", "-m", "zoo:tiny", "--data", "../tiny.npz", "--device", "pixel8", "--json")
    assert result.exit_code == 0, result.stderr
    settings = tomllib.loads(Path("edgecompress.toml").read_text(encoding="utf-8"))
    assert set(settings) == set(COMMANDS)
    assert settings["search"] == {"model": "zoo:tiny", "data": "../tiny.npz"}
    assert settings["recover"] == {"data": "../tiny.npz"}
    assert settings["bench"] == {"device": "pixel8"} and settings["export"] == {"data": "../tiny.npz"}
    facts = json.loads(result.stdout)["facts"]
    assert "1 layers to rewrite" in facts[0] and "1,100" in facts[1] and "Pixel 8" in facts[2]


def test_every_option_of_every_command_is_explained_once():
    assert run("init", "-m", "zoo:tiny").exit_code == 0
    text = Path("edgecompress.toml").read_text(encoding="utf-8")
    for name in COMMANDS:
        table = text.split(f"\n[{name}]\n")[1].split("\n\n[")[0]
        for param in get_command(app).commands[name].params:
            key = param.opts[0].lstrip("-").replace("-", "_")
            if param.param_type_name == "option" and key not in NOT_SETTINGS:
                keys = [line for line in table.splitlines() if line.lstrip("#").startswith(f"{key} = ")]
                assert len(keys) == 1, (name, key)


def test_defaults_behind_the_hash_are_values_the_commands_take():
    """What is commented out with a real value can be uncommented."""
    assert run("init", "-m", "zoo:tiny").exit_code == 0
    lines = Path("edgecompress.toml").read_text(encoding="utf-8").splitlines()
    shown = [line[1:] for line in lines if line.startswith("#") and not line.startswith("# ")]
    real = [line for line in shown if line.split(" = ")[1][0] in '"tf0123456789']
    assert len(real) > 20
    tomllib.loads("\n".join(dict.fromkeys(line for line in real if "true" in line or "false" in line)))


def test_a_command_reads_the_file(folder):
    assert run("init", "-m", "zoo:tiny").exit_code == 0
    quick = ("--calibration-images", 32, "--selection-images", 32, "--report-images", 32)
    done = run("compress", "--config", "edgecompress.toml", *quick, "--budget", "macs=70%", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["model"]["source"] == "zoo:tiny"
    error = run("bench", "--config", "edgecompress.toml", "gone.tflite")
    check_one_line_error(error, "gone.tflite")


def test_a_table_that_has_the_model_is_found_and_others_are_to_be_built():
    known = json.loads(run("init", "a.toml", "-m", "zoo:fashion_resnet", "--json").stdout)
    assert known["facts"][2] == "device: this machine"
    (said,) = (
        fact for fact in known["facts"] if fact.startswith("latency table: pixel4.json, of another device")
    )
    assert "emulated-a76" in said and "latency build --device local --model zoo:fashion_resnet" in said
    assert known["next"][0] == "edgecompress search --config a.toml"
    other = json.loads(run("init", "b.toml", "-m", "zoo:tiny", "--device", "pixel8", "--json").stdout)
    assert other["next"][0] == "edgecompress latency build --device pixel8 --model zoo:tiny -o pixel8.json"
    assert other["next"][1] == "edgecompress search --latency-table pixel8.json --config b.toml"
    phone = json.loads(
        run("init", "c.toml", "-m", "zoo:fashion_resnet", "--device", "pixel4", "--json").stdout
    )
    assert "latency table: pixel4.json" in phone["facts"]


def test_the_command_that_builds_a_table_is_told_all_of_the_input(folder):
    net = "nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 8 * 8, 5))"
    (folder / "my net.py").write_text(f"from torch import nn\n\ndef build():\n    return {net}\n")
    shape = ("--input-size", "12x12", "--channels", "1", "--classes", "5")
    result = run("init", "-m", "my net.py:build", *shape, "--json")
    assert result.exit_code == 0, result.stderr
    build = json.loads(result.stdout)["next"][0]
    assert "--model 'my net.py:build' --input-size 12x12 --channels 1 --classes 5 -o local.json" in build
    done = run(*shlex.split(build)[1:], "--dry-run", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["measurements"] > 0, done.stderr


def test_missing_images_are_said():
    result = run("init", "-m", "zoo:blind")
    assert result.exit_code == 0 and "images: none; pass --data" in result.stdout


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["-m", "zoo:nothing"], ["nothing"]),
        (["-m", "zoo:tiny", "--data", "nowhere/"], ["nowhere"]),
        (["-m", "zoo:tiny", "--device", "pixel99"], ["pixel99"]),
        (["-m", "zoo:tiny", "--latency-table", "pixel4.json"], ["zoo:tiny"]),
        (["-m", "zoo:tiny", "--input-size", "big"], ["224x224"]),
    ],
)
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(args, parts):
    check_one_line_error(run("init", *args), *parts)
    assert not list(Path().iterdir())


def test_a_file_that_is_there_stays_unless_told_otherwise():
    Path("edgecompress.toml").write_text("mine")
    check_one_line_error(run("init", "-m", "zoo:tiny"), "already exists", "--overwrite")
    assert Path("edgecompress.toml").read_text() == "mine"
    assert run("init", "-m", "zoo:tiny", "--overwrite").exit_code == 0
    assert "[search]" in Path("edgecompress.toml").read_text()
