"""Stronger ways to vary images, for learning from a dense network: it can be asked about any picture.

Beyer et al., "Knowledge distillation: a good teacher is patient and consistent", CVPR 2022: both networks see
the same part of the same mixture of images, and then few images suffice for a long training.
"""

from __future__ import annotations

import math
import re

import torch
import torch.nn.functional as F
from torch import Tensor

from edgecompress.errors import ConfigError
from edgecompress.train.images import Change, parse_changes

MOST_STRETCH = 4 / 3
"""Ratio of the sides of what is cut out, either way."""


def zoom(images: Tensor, generator: torch.Generator, *, least: float) -> Tensor:
    """Enlarges a random part of every image, with between `least` and all of its area, to the whole."""
    count = len(images)
    area = least + (1 - least) * torch.rand(count, generator=generator)
    stretch = torch.exp((2 * torch.rand(count, generator=generator) - 1) * math.log(MOST_STRETCH))
    width, height = (area * stretch).sqrt().clamp(max=1), (area / stretch).sqrt().clamp(max=1)
    right, down = ((2 * torch.rand(count, generator=generator) - 1) * (1 - side) for side in (width, height))
    maps = torch.zeros(count, 2, 3)
    maps[:, 0, 0], maps[:, 0, 2], maps[:, 1, 1], maps[:, 1, 2] = width, right, height, down
    grid = F.affine_grid(maps.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def mixture(images: Tensor, generator: torch.Generator) -> Tensor:
    """Adds to every image some of another one, as much as chance will have it. Labels mean nothing then."""
    share = torch.rand(len(images), 1, 1, 1, generator=generator).to(images)
    others = images[torch.randperm(len(images), generator=generator)]
    return share * images + (1 - share) * others


def parse_variations(text: str, size: tuple[int, int], *, labels: bool) -> tuple[Change, ...]:
    """Reads what `parse_changes` does, and `zoom25` (parts of 25 to 100 % of the area) and `mix`.

    With `labels` mixtures are left out: they have none.

    Raises:
        ConfigError: a part is not understood.
    """
    found: list[Change] = []
    for part in (part.strip() for part in text.split(",")):
        if part == "mix":
            found += [] if labels else [mixture]
        elif match := re.fullmatch(r"zoom(\d+)", part):
            found.append(_zoom(int(match[1]), part))
        else:
            found += parse_changes(part, size)
    return tuple(found)


def _zoom(percent: int, text: str) -> Change:
    if not 1 <= percent < 100:
        raise ConfigError(f"--augment {text!r}: the least share must be 1 to 99 per cent")
    return lambda images, generator: zoom(images, generator, least=percent / 100)
