"""Small image files for the tests, and the preprocessing that gives their bytes back."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from edgecompress.core.types import Preprocess
from edgecompress.data.sources import ImageSet

RAW_GREY = Preprocess(size=(6, 8), mean=(0.0,), std=(1 / 255,))
RAW_RGB = Preprocess(size=(6, 8), mean=(0.0,) * 3, std=(1 / 255,) * 3)
"""Undo the scaling, so that tensors hold the stored bytes."""
RAW_CIFAR = RAW_RGB.model_copy(update={"size": (32, 32)})


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def stored(images: ImageSet) -> np.ndarray:
    """The bytes (N, H, W, C) behind a set opened with a RAW preprocessing."""
    return images.images(range(len(images))).round().permute(0, 2, 3, 1).numpy().astype(np.uint8)


def save_png(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(directory: Path, part: str, pixels: np.ndarray, labels: list[int], *, packed: bool) -> None:
    for name, array in (("images-idx3", pixels), ("labels-idx1", np.array(labels, dtype=np.uint8))):
        raw = idx_bytes(array)
        file = directory / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
        file.write_bytes(gzip.compress(raw) if packed else raw)
