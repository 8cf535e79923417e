"""Networks of the zoo made small, with weights and images of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from edgecompress.core.types import Preprocess
from edgecompress.nets.entries import Entry
from edgecompress.nets.sources import zoo_entries

SIDE, CLASSES = 8, 4
IMAGES = 1100  # enough to calibrate, choose and report with
SHAPE = (1, SIDE, SIDE)


class TinyNet(nn.Module):
    def __init__(self, *, dice: bool = False) -> None:
        super().__init__()
        self.dice = dice
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = x + torch.rand_like(x) if self.dice else x
        x = self.norm(self.conv2(torch.relu(self.conv1(x))))
        return self.head(torch.relu(x).mean((2, 3)))


def save_weights(file: Path, network: nn.Module, *, seed: int = 0) -> None:
    torch.manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=2 * module.weight[0].numel() ** -0.5)
    save_file(network.state_dict(), file)


def save_images(file: Path, *, labels: bool = True, count: int = IMAGES) -> Path:
    """Writes images of plain areas, which the network tells apart."""
    rng = np.random.default_rng(0)
    areas = rng.integers(0, 256, (count, 2, 2)).repeat(SIDE // 2, axis=1).repeat(SIDE // 2, axis=2)
    pixels = np.clip(areas + rng.integers(-20, 20, areas.shape), 0, 255).astype(np.uint8)
    np.savez(file, x=pixels, **({"y": rng.integers(0, CLASSES, count)} if labels else {}))
    return file


def entry(name: str, directory: Path, *, images: bool = True, dice: bool = False) -> Entry:
    """A network of the zoo; its files are in the directory, called after it."""
    weights, data = directory / f"{name}.safetensors", directory / f"{name}.npz"
    save_weights(weights, TinyNet())
    save_images(data)
    return Entry(
        name=name,
        summary="",
        build=lambda classes: TinyNet(dice=dice),
        classes=CLASSES,
        preprocess=Preprocess(size=(SIDE, SIDE), mean=(0.5,), std=(0.25,)),
        is_target=lambda name, module: name == "conv2",
        weights=lambda: weights,
        data=str(data) if images else None,
    )


@contextmanager
def in_zoo(*entries: Entry) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for one in entries:
            patch.setitem(zoo_entries(), one.name, one)
        yield
