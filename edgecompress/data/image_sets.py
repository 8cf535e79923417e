"""The two kinds of image sets: arrays in memory and files that are decoded when needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgecompress.core.types import Preprocess
from edgecompress.data.pixels import Pixels, decode, fit_array, normalise
from edgecompress.errors import DataError

CACHE_BYTES = 256 * 1024 * 1024
"""Decoded files that one set keeps."""


class ArraySet:
    """Images that are in memory as bytes (N, H, W) or (N, H, W, C)."""

    def __init__(
        self, name: str, pixels: npt.NDArray[np.generic], labels: npt.ArrayLike | None, preprocess: Preprocess
    ) -> None:
        """Checks shapes and counts.

        Raises:
            DataError: the pixels are not bytes of grey or RGB images, or the labels do not fit them.
        """
        self.name = name
        self.classes: int | None = None
        self._pixels = _checked_pixels(name, pixels)
        self._labels = None if labels is None else checked_labels(name, np.asarray(labels), len(pixels))
        self._preprocess = preprocess

    def __len__(self) -> int:
        return len(self._pixels)

    def labels(self) -> Tensor | None:
        """Returns one class index per image, if known."""
        return self._labels

    def images(self, indices: Sequence[int]) -> Tensor:
        """Returns these images preprocessed."""
        chosen = self._pixels[np.asarray(indices, dtype=np.int64)]
        if chosen.shape[1:] == (*self._preprocess.size, len(self._preprocess.mean)):
            return normalise(chosen, self._preprocess)
        return normalise([fit_array(one, self._preprocess) for one in chosen], self._preprocess)


class FileSet:
    """Image files, decoded when asked for; the latest ones are kept up to `CACHE_BYTES`."""

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        labels: Sequence[int] | None,
        preprocess: Preprocess,
        *,
        classes: int | None = None,
    ) -> None:
        self.name = name
        self.classes = classes
        self._paths = tuple(paths)
        self._labels = None if labels is None else checked_labels(name, np.asarray(labels), len(paths))
        self._preprocess = preprocess
        bytes_per_image = len(preprocess.mean) * preprocess.size[0] * preprocess.size[1]
        self._decode = lru_cache(maxsize=max(1, CACHE_BYTES // bytes_per_image))(decode)

    def __len__(self) -> int:
        return len(self._paths)

    def labels(self) -> Tensor | None:
        """Returns one class index per image, if known."""
        return self._labels

    def images(self, indices: Sequence[int]) -> Tensor:
        """Returns these images preprocessed.

        Raises:
            DataError: a file cannot be decoded; the message names it.
        """
        return normalise([self._decode(self._paths[i], self._preprocess) for i in indices], self._preprocess)


def _checked_pixels(name: str, pixels: npt.NDArray[np.generic]) -> Pixels:
    grey = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[-1] == 1)
    colour = pixels.ndim == 4 and pixels.shape[-1] == 3
    if pixels.dtype != np.uint8 or not (grey or colour):
        raise DataError(
            f"{name}: images are {pixels.dtype} of shape {pixels.shape}; "
            "they must be uint8 (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
        )
    if pixels.size == 0:
        raise DataError(f"{name}: there are no images")
    as_bytes = pixels.astype(np.uint8, copy=False)
    return as_bytes[..., None] if pixels.ndim == 3 else as_bytes


def checked_labels(name: str, labels: npt.NDArray[np.generic], images: int) -> Tensor:
    """Returns labels as int64.

    Raises:
        DataError: they are not whole numbers, one per image and none below zero.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras stores CIFAR
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"{name}: labels are {labels.dtype} of shape {labels.shape}; "
            "they must be one class index per image"
        )
    if len(labels) != images:
        raise DataError(f"{name}: {images} images but {len(labels)} labels")
    if images and int(labels.min()) < 0:
        raise DataError(f"{name}: label {int(labels.min())} found; class indices start at 0")
    return torch.from_numpy(labels.astype(np.int64))
