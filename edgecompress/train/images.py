"""Which images a step sees, and how they are varied: from seed and step alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgecompress.data.splits import Split
from edgecompress.errors import ConfigError, DataError
from edgecompress.train.contract import Batch
from edgecompress.train.parallel import own_share, processes

Change = Callable[[Tensor, torch.Generator], Tensor]
"""Varies a batch of images."""


@dataclass(frozen=True)
class TrainingImages:
    """Images to train on, drawn in one random order after the other."""

    split: Split
    batch_images: int
    """Per step, all processes together."""
    changes: tuple[Change, ...]
    seed: int

    def __post_init__(self) -> None:
        """Checks that every process gets an image."""
        if len(self.split) == 0:
            raise DataError(f"{self.split.images.name}: no images are left to train on")
        if self.size < processes():
            raise ConfigError(
                f"batches of {self.size} images for {processes()} processes; "
                "give more images, or start fewer processes"
            )

    @property
    def size(self) -> int:
        """Images of a step; fewer than asked for where there are not so many."""
        return min(self.batch_images, len(self.split))

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every image is seen once, to the nearest step."""
        return max(1, round(len(self.split) / self.size))

    def batch(self, step: int) -> Batch:
        """Returns the images of a step that are this process's."""
        places = step_indices(len(self.split), self.size, step, self.seed)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + step) * 7919 + 1)
        # varied before they are shared out, so that the number of processes does not matter
        chosen = [self.split.indices[place] for place in places.tolist()]
        images = self.split.images.images(chosen)
        for change in self.changes:
            images = change(images, generator)
        labels = self.split.images.labels()
        own = own_share(torch.arange(len(chosen)))
        told = None if labels is None else labels[chosen][own]
        return Batch(images[own], told, len(chosen), step)


def step_indices(count: int, size: int, step: int, seed: int) -> Tensor:
    """Returns which images a step sees: one random order of all after the other, cut into batches."""
    size = min(size, count)
    first, last = step * size, (step + 1) * size
    orders = [_order(count, turn, seed) for turn in range(first // count, (last - 1) // count + 1)]
    skipped = first // count * count
    return torch.cat(orders)[first - skipped : last - skipped]


def _order(count: int, turn: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + turn))


def mirror(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrors half of the images, left to right."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(3), images)


def crop(images: Tensor, generator: torch.Generator, *, margin: int) -> Tensor:
    """Moves every image by up to `margin` pixels both ways; what comes in is reflected."""
    count, channels, height, width = images.shape
    padded = F.pad(images, (margin,) * 4, mode="reflect")
    down, right = torch.randint(0, 2 * margin + 1, (2, count), generator=generator)
    rows = (down[:, None] + torch.arange(height))[:, None, :, None]
    columns = (right[:, None] + torch.arange(width))[:, None, None, :]
    picture = torch.arange(count)[:, None, None, None]
    return padded[picture, torch.arange(channels)[None, :, None, None], rows, columns]


def erase(images: Tensor, generator: torch.Generator, *, share: float) -> Tensor:
    """Blanks a square of that share of the area in half of the images."""
    height, width = images.shape[2:]
    side = max(1, round((share * height * width) ** 0.5))
    count = len(images)
    top = (torch.rand(count, generator=generator) * max(1, height - side + 1)).long()
    left = (torch.rand(count, generator=generator) * max(1, width - side + 1)).long()
    y, x = torch.arange(height)[None, :, None], torch.arange(width)[None, None, :]
    inside = (y >= top[:, None, None]) & (y < (top + side)[:, None, None])
    inside = inside & (x >= left[:, None, None]) & (x < (left + side)[:, None, None])
    inside = inside & (torch.rand(count, generator=generator) < 0.5)[:, None, None]
    return images.masked_fill(inside[:, None], 0.0)


def parse_changes(text: str, size: tuple[int, int]) -> tuple[Change, ...]:
    """Reads `crop4,flip` or `flip,erase10`; `none` is nothing.

    Raises:
        ConfigError: a part is not understood, or a margin is as large as the images.
    """
    parts = [part.strip() for part in text.split(",") if part.strip() not in ("", "none")]
    return tuple(_change(part, size) for part in parts)


def _change(text: str, size: tuple[int, int]) -> Change:
    if text == "flip":
        return mirror
    match = re.fullmatch(r"(crop|erase)(\d+)", text)
    if match is None:
        raise ConfigError(f"--augment {text!r}: not understood; write crop4, flip, erase10 or none")
    amount = int(match[2])
    if match[1] == "crop":
        if not 1 <= amount < min(size):
            raise ConfigError(f"--augment {text!r}: the margin must be 1 to {min(size) - 1} pixels")
        return lambda images, generator: crop(images, generator, margin=amount)
    if not 1 <= amount <= 50:
        raise ConfigError(f"--augment {text!r}: blanks 1 to 50 per cent")
    return lambda images, generator: erase(images, generator, share=amount / 100)
