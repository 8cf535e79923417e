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
    own = [command for command in commands() if "my_net.py" in command]
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


def test_every_command_of_the_table_exists():
    listed = set(
        re.findall(r"^\| `edgecompress ([a-z]+)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    shown = subprocess.run(
        [sys.executable, "-m", "edgecompress", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert listed >= {"quickstart", "inspect", "compress", "list", "doctor"}
    assert all(re.search(rf"\b{name}\b", shown) for name in listed)
