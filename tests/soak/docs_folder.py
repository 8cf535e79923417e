"""Small stand-ins of what the docs take for granted: a network, its weights, images, tables, files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench_files import exported_run, onnx, tflite
from image_files import noise, save_png
from made_tables import MODEL, write_table
from phone.phone import BENCHMARK_MODEL
from safetensors.torch import save_file
from test_docs import HOME

from edgecompress.nets.sources import load_model

PHOTOS, CLASSES = 80, 10
"""No network of the docs tells fewer classes apart; `labels.txt` may name a part of them."""


def _write_net(file: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (HOME / "README.md").read_text("utf-8"), re.DOTALL)
    file.write_text(next(block for block in blocks if "def build" in block))


def _write_own_weights(file: Path) -> None:
    names: dict[str, Callable[[], torch.nn.Module]] = {}
    _write_net(file.with_name("my_net.py"))
    exec(file.with_name("my_net.py").read_text(), names)
    save_file(names["build"]().state_dict(), file)


def _write_weights(source: str) -> Callable[[Path], None]:
    return lambda file: torch.save(load_model(source).module.state_dict(), file)


def _write_photos(directory: Path) -> None:
    for number in range(PHOTOS):
        save_png(directory / f"{number}.png", noise(32, 32, 3, seed=number) // 2 + 10 * (number % CLASSES))
    labels = "".join(f"{number}.png {number % CLASSES}\n" for number in range(PHOTOS))
    (directory / "labels.txt").write_text(labels)


def _write_cifar(directory: Path) -> None:
    directory.mkdir()
    for name, count in (("data_batch_1.bin", 300), ("test_batch.bin", 60)):
        labels = np.arange(count, dtype=np.uint8)[:, None] % 10
        (directory / name).write_bytes(np.hstack([labels, noise(count, 3072) // 2 + 12 * labels]).tobytes())


def _write_table(file: Path) -> None:
    (file.parent / "small.py").write_text(MODEL)
    write_table(file)


def _write_exported_run(directory: Path) -> None:
    exported_run(directory.parent, ["dense.tflite", "compressed.tflite"], name=directory.name)


def _write_board(file: Path) -> None:
    shutil.copy(HOME / "devices" / "rpi5.toml", file)


def _write_binary(file: Path) -> None:
    shutil.copy(BENCHMARK_MODEL, file)


STAND_INS: dict[str, Callable[[Path], object]] = {
    "my_board.toml": _write_board,
    "my_net.py": _write_net,
    "my_net.safetensors": _write_own_weights,
    "resnet20.pth": _write_weights("zoo:resnet20"),
    "mobilenet_v2.pth": _write_weights("torchvision:mobilenet_v2"),
    "photos/": _write_photos,
    "cifar/": _write_cifar,
    "a.tflite": tflite,
    "b.tflite": tflite,
    "c.onnx": onnx,
    "runs/exported": _write_exported_run,
    "monday.json": _write_table,
    "tuesday.json": _write_table,
    " benchmark_model": _write_binary,
    "android_aarch64_benchmark_model": _write_binary,
}
"""How what a command names is made; a name begins with a blank where others end in it."""


def fill(folder: Path, commands: list[str]) -> set[str]:
    """Writes what the commands name into the folder, which is the working directory; returns which."""
    torch.manual_seed(0)
    named = {name for name in STAND_INS if any(name in command for command in commands)}
    for name in sorted(named):
        STAND_INS[name](folder / name.strip())
    return named
