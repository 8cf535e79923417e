"""Files of images that were made, not taken: `images-000.safetensors` and so on, in float16.

Pixels are stored as a network takes them, normalised. One text of metadata says what they were made with: the
order of several is not always the same, and equal images are to be equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from edgecompress.core.types import Preprocess
from edgecompress.errors import DataError

IMAGES, LABELS = "images", "labels"
_TOLD = "edgecompress"
_PREPROCESS = "preprocess"


@dataclass(frozen=True)
class Shard:
    """One file, and what can be known of it without reading the images."""

    path: Path
    images: int
    shape: tuple[int, ...]
    """Of one image."""
    labels: Tensor | None
    preprocess: Preprocess
    """Of the network they were made for."""


def shard_name(number: int) -> str:
    """Returns the file name of a shard."""
    return f"images-{number:03d}.safetensors"


def shard_files(directory: Path) -> list[Path]:
    """Returns the shards of a directory in their order."""
    found = directory.glob("images-*.safetensors")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def shard_bytes(
    images: Tensor, labels: Tensor | None, preprocess: Preprocess, told: Mapping[str, JsonValue]
) -> bytes:
    """Returns the content of a shard: the same for the same arguments, always."""
    tensors = {IMAGES: images.to(torch.float16).contiguous()}
    if labels is not None:
        tensors[LABELS] = labels.to(torch.int64).contiguous()
    text = json.dumps({_PREPROCESS: preprocess.model_dump(mode="json"), **told}, sort_keys=True)
    return save(tensors, {_TOLD: text})


def read_shard(path: Path) -> Shard:
    """Reads all of a shard but its images.

    Raises:
        DataError: it is damaged, or no shard.
    """
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads(file.metadata()[_TOLD])
            part = file.get_slice(IMAGES)
            count, *shape = part.get_shape()
            if part.get_dtype() != "F16" or len(shape) != 3:
                raise DataError(f"{path}: images are {part.get_dtype()} of shape {part.get_shape()}")
            labels = file.get_tensor(LABELS) if LABELS in file.keys() else None  # noqa: SIM118 - no mapping
        if labels is not None and (labels.dtype != torch.int64 or labels.shape != (count,)):
            raise DataError(f"{path}: labels are {labels.dtype} of shape {tuple(labels.shape)}")
        return Shard(path, count, tuple(shape), labels, Preprocess.model_validate(told[_PREPROCESS]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a file of synthetic images ({error}); make it again") from None


def read_images(shard: Shard) -> Tensor:
    """Returns the images of a shard, float16.

    Raises:
        DataError: the file is gone or damaged.
    """
    try:
        with safe_open(shard.path, framework="pt") as file:
            images: Tensor = file.get_tensor(IMAGES)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{shard.path}: cannot be read: {error}") from None
    return images
