"""Which images a network answers rightly: kept in rows, so that two networks are compared image by image."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scoreboard_journal import Row
from torch import Tensor

from edgecompress.data.splits import Split

Z = 1.96
"""Of a 95 % interval."""


@dataclass(frozen=True)
class Difference:
    """By how many percentage points a network is better than another, on the same images."""

    points: float
    half_width: float
    """Of the 95 % interval."""

    @property
    def may_be_chance(self) -> bool:
        """Whether it could as well be nothing."""
        return abs(self.points) <= self.half_width


@torch.no_grad()
def judged(answer: Callable[[Tensor], Tensor], split: Split, size: int) -> Row:
    """Returns the part of a row that says how good answers to a split's images are."""
    hits = []
    for images, labels in split.batches(size):
        assert labels is not None  # report images have them
        hits.append(answer(images).argmax(1) == labels)
    right = torch.cat(hits).numpy()
    return {"top1": 100 * float(right.mean()), "images": len(right), "right": packed(right)}


def packed(right: NDArray[np.bool_]) -> str:
    """Returns a bit per image as text."""
    return base64.b64encode(np.packbits(right).tobytes()).decode()


def unpacked(text: str, images: int) -> NDArray[np.bool_]:
    """Returns what `packed` was given."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=images).astype(bool)


def difference(one: Row, other: Row) -> Difference:
    """Returns how much better the first of two rows is.

    What counts are the images only one of the two answers rightly (McNemar). One such image more of each kind
    keeps the interval from vanishing where there are none (Agresti and Min). Rows that do not say which
    images they answer rightly are taken to be about different ones.
    """
    points = one["top1"] - other["top1"]
    if "right" not in one or "right" not in other:
        return Difference(
            points, math.hypot(*(half_width(row["top1"], row["images"]) for row in (one, other)))
        )
    first, second = (unpacked(row["right"], row["images"]) for row in (one, other))
    gained, lost = int((first & ~second).sum()) + 1, int((second & ~first).sum()) + 1
    images = len(first) + 4
    error = math.sqrt(gained + lost - (gained - lost) ** 2 / images) / images
    return Difference(points, 100 * Z * error)


def half_width(top1: float, images: int) -> float:
    """Returns half of the 95 % interval of a percentage of so many images (Agresti and Coull)."""
    tried = images + Z * Z
    share = (top1 / 100 * images + Z * Z / 2) / tried
    return float(100 * Z * (share * (1 - share) / tried) ** 0.5)
