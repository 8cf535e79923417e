"""The README's example works as it stands, from the command line and from Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from test_report import text_of
from typer.main import get_command

from edgecompress.cli.main import app
from edgecompress.devices.emulated import _worth
from edgecompress.devices.files import load_device

README = Path(__file__).parents[1] / "README.md"
CLASSES = 12
IMAGES_PER_CLASS = 6


def code_blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands():
    """Returns the indented commands of the README, continuation lines joined."""
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    return [
        line.split("#")[0].strip()
        for line in text.splitlines()
        if re.match(r"    (edgecompress|make) ", line)
    ]


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the example's network, its weights and a few photos per class."""
    network = next(block for block in code_blocks() if "def build" in block)
    (tmp_path / "my_net.py").write_text(network, encoding="utf-8")
    names: dict[str, object] = {}
    exec(network, names)
    torch.manual_seed(0)
    save_file(names["build"]().state_dict(), tmp_path / "my_net.safetensors")
    random = np.random.default_rng(0)
    for label in range(CLASSES):
        directory = tmp_path / "photos" / f"class{label:02d}"
        directory.mkdir(parents=True)
        for number in range(IMAGES_PER_CLASS):
            pixels = random.integers(0, 256, (96, 110, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(directory / f"{number}.jpg")
    return tmp_path


def run(argv, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_commands_for_an_own_model_work(folder):
    own = [command for command in commands() if "my_net.py" in command and "latency" not in command]
    assert len(own) == 2
    for command in own:
        done = run([sys.executable, "-m", "edgecompress", *command.split()[1:]], folder)
        assert done.returncode == 0, done.stderr
    assert {file.name for file in (folder / "runs" / "compress-my_net-001").iterdir()} == {
        "plan.json",
        "weights.safetensors",
        "result.json",
        "run.json",
    }


def test_the_python_example_works(folder):
    (example,) = (block for block in code_blocks() if "edgecompress.compress(" in block)
    done = run([sys.executable, "-c", example + "\nprint(type(network).__name__)"], folder)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9.]+ -> [0-9.]+\nSequential\n", done.stdout)


def all_commands():
    """Returns the commands there are, those of groups as `device show`."""
    found = {}
    for name, command in get_command(app).commands.items():
        if hasattr(command, "commands"):
            found |= {f"{name} {inner}": one for inner, one in command.commands.items()}
        else:
            found[name] = command
    return found


def test_the_table_has_every_command_and_no_other():
    text = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `edgecompress ([a-z]+) ?([^`]*)`", text, flags=re.MULTILINE)
    groups = {name.split()[0] for name in all_commands() if " " in name}
    listed = {
        f"{name} {inner}" if name in groups else name
        for name, rest in rows
        for inner in re.findall(r"[a-z]+", rest) or [""]
    }
    assert listed == set(all_commands())


def test_the_commands_said_to_take_a_file_of_settings_do_and_no_others():
    (said,) = re.findall(r"have `--config FILE.toml`(.*?)`--help`", README.read_text("utf-8"), re.DOTALL)
    takes = {name for name, one in all_commands().items() if any("--config" in p.opts for p in one.params)}
    assert set(re.findall(r"`([a-z ]+)`", said)) == takes
    assert all(any("--json" in p.opts for p in one.params) for one in all_commands().values())


def test_the_error_of_the_emulated_phone_is_the_one_that_is_printed():
    (said,) = re.findall(r"predicted within ([0-9.]+ %) on average", README.read_text("utf-8"))
    model = load_device("emulated-a76").count_models[0]
    assert (model.cluster, model.dtype) == ("prime", "float32")
    assert said == f"{100 * model.mean_error:.2f} %"
    assert f"{said} on average" in _worth(model)
    assert said in text_of(load_device("emulated-a76"))


def test_every_flag_of_every_command_exists():
    checked = 0
    for line in commands():
        words = line.split()
        if words[0] != "edgecompress":
            continue
        name = " ".join(words[1:3]) if " ".join(words[1:3]) in all_commands() else words[1]
        known = {
            flag for param in all_commands()[name].params for flag in (*param.opts, *param.secondary_opts)
        }
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known, line
        checked += len(given)
    assert checked > 5
