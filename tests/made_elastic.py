"""A small network of the zoo that can be trained in a second and cut to many sizes, and its images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from made_trainings import CLASSES, PREPROCESS, SIDE, pixels_and_labels
from torch import nn

from edgecompress.nets.entries import Entry

NAME = "stepped"


class Stepped(nn.Module):
    """Three convolutions with norms, the second with a stride, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.down, self.norm1 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.same, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * SIDE * SIDE // 4, classes)

    def forward(self, x):
        x = self.norm0(self.stem(x)).relu()
        x = self.norm1(self.down(x)).relu()
        return self.head(self.norm2(self.same(x)).relu().flatten(1))


def entry(data: Path | None = None, weights: Path | None = None) -> Entry:
    """Returns the network for the zoo; the papers would cut its two inner convolutions."""
    return Entry(
        name=NAME,
        summary="",
        build=Stepped,
        classes=CLASSES,
        preprocess=PREPROCESS,
        is_target=lambda name, module: name in ("down", "same"),
        weights=None if weights is None else lambda: weights,
        data=None if data is None else str(data),
    )


def save_divided(file: Path, *, train: int = 240, test: int = 60) -> Path:
    """Writes images that say which of them are for testing."""
    (x, y), (x_test, y_test) = pixels_and_labels(train), pixels_and_labels(test, seed=5)
    np.savez(file, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return file


def save_pool(
    file: Path, *, count: int = 200, guesses: bool = False, labels: bool = True, seed: int = 0
) -> Path:
    """Writes images in one set; with `guesses` their labels say nothing of them."""
    x, y = pixels_and_labels(count, seed=seed)
    y = np.random.default_rng(1).permutation(y) if guesses else y
    np.savez(file, x=x, **({"y": y} if labels else {}))
    return file
