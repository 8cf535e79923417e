"""Many images on one, to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from edgecompress.core.store import replacing
from edgecompress.core.types import Preprocess
from edgecompress.data.pixels import Pixels

COLUMNS, ROWS = 16, 8
LEAST_SIDE = 64
"""Pixels; smaller images are enlarged."""
WIDEST = 2048
"""Pixels; larger images are shown in fewer columns."""
_GAP = 2


def save_contact_sheet(path: Path, images: Tensor, preprocess: Preprocess) -> None:
    """Writes the first images as one PNG, normalisation undone; values no pixel can have are cut off."""
    pixels = _pixels(images[: COLUMNS * ROWS], preprocess)
    times = max(1, -(-LEAST_SIDE // min(preprocess.size)))
    pixels = pixels.repeat(times, axis=1).repeat(times, axis=2)
    columns = max(1, min(COLUMNS, len(pixels), WIDEST // pixels.shape[2]))
    grid = _grid(pixels[: columns * ROWS], columns)
    with replacing(path) as temporary:
        Image.fromarray(grid[..., 0] if grid.shape[-1] == 1 else grid).save(temporary, format="PNG")


def _pixels(images: Tensor, preprocess: Preprocess) -> Pixels:
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (preprocess.mean, preprocess.std))
    shown = ((images.float() * std + mean) * 255).nan_to_num().clamp(0, 255).round().to(torch.uint8)
    return np.ascontiguousarray(shown.permute(0, 2, 3, 1).numpy())


def _grid(pixels: Pixels, columns: int) -> Pixels:
    count, height, width, channels = pixels.shape
    rows = -(-count // columns)
    high, wide = height + _GAP, width + _GAP
    grid = np.full((rows * high - _GAP, columns * wide - _GAP, channels), 255, np.uint8)
    for index, one in enumerate(pixels):
        top, left = index // columns * high, index % columns * wide
        grid[top : top + height, left : left + width] = one
    return grid
