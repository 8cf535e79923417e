"""The patches a layer sees, at positions drawn at random: second moments need thousands, not millions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from edgecompress.core.costs import out_size
from edgecompress.core.types import Op

MIN_PATCHES = 32768
PATCHES_PER_ENTRY = 8
"""At least this many patches for each entry of one, so that the moment is well conditioned."""


def patches_per_image(op: Op, images: int) -> int:
    """Returns how many positions of each image to look at."""
    entries = op.inputs * op.kernel[0] * op.kernel[1]
    return -(-max(MIN_PATCHES, PATCHES_PER_ENTRY * entries) // images)


def sample_patches(x: Tensor, op: Op, count: int, seed: int) -> Tensor:
    """Returns (images * positions, c kh kw) patches at `count` positions, the same for equal seeds.

    Two networks that are sampled with one seed are sampled at the same positions.
    """
    if op.kind == "linear":
        tokens = x.reshape(len(x), -1, x.shape[-1]) if x.ndim > 2 else x[:, None]
        chosen = _choose(tokens.shape[1], count, seed)
        return tokens[:, chosen].reshape(-1, op.inputs)
    height, width = out_size(op, (x.shape[-2], x.shape[-1]))
    chosen = _choose(height * width, count, seed)
    rows, columns = chosen // width, chosen % width
    padded = F.pad(x, (op.padding[1], op.padding[1], op.padding[0], op.padding[0]))
    at_rows = _taps(rows, op, 0)[:, :, None]  # (positions, kh, 1)
    at_columns = _taps(columns, op, 1)[:, None, :]  # (positions, 1, kw)
    patches = padded[:, :, at_rows, at_columns]  # (images, c, positions, kh, kw)
    return patches.transpose(1, 2).reshape(-1, op.inputs * op.kernel[0] * op.kernel[1])


def _choose(available: int, count: int, seed: int) -> Tensor:
    if count >= available:
        return torch.arange(available)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(available, generator=generator)[:count]


def _taps(starts: Tensor, op: Op, axis: int) -> Tensor:
    steps = torch.arange(op.kernel[axis]) * op.dilation[axis]
    return starts[:, None] * op.stride[axis] + steps
