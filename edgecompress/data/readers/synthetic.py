"""Images made by `edgecompress synthesize`: a run, or a directory with its `images-*.safetensors`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from edgecompress.core.store import read_record
from edgecompress.core.synthesis_results import SYNTHESIS_FILE, SynthesisResult
from edgecompress.core.types import Preprocess
from edgecompress.data.sources import Reader, Source
from edgecompress.data.synthetic_shards import Shard, read_images, read_shard, shard_files
from edgecompress.errors import ArtefactError, DataError

OPEN_SHARDS = 8
"""Whose images are kept in memory."""


class SyntheticSet:
    """Images that are stored as a network takes them; nothing is done to them."""

    def __init__(self, name: str, shards: Sequence[Shard]) -> None:
        self.name = name
        self.classes: int | None = None
        labels = [shard.labels for shard in shards if shard.labels is not None]
        self._labels = torch.cat(labels) if len(labels) == len(shards) else None
        self._places = [(shard, index) for shard in shards for index in range(shard.images)]
        self._read = lru_cache(maxsize=OPEN_SHARDS)(read_images)

    def __len__(self) -> int:
        return len(self._places)

    def labels(self) -> Tensor | None:
        """Returns the class every image was made to look like, if any."""
        return self._labels

    def images(self, indices: Sequence[int]) -> Tensor:
        """Returns these images in float32.

        Raises:
            DataError: a file is gone or damaged.
        """
        chosen = [self._places[index] for index in indices]
        # shard by shard: a random order would read each file many times
        order = sorted(range(len(chosen)), key=lambda place: str(chosen[place][0].path))
        found: dict[int, Tensor] = {}
        for place in order:
            shard, index = chosen[place]
            found[place] = self._read(shard)[index]
        return torch.stack([found[place] for place in range(len(chosen))]).float()


def open_synthetic(path: str, preprocess: Preprocess) -> Source:
    """Opens a directory of synthetic images as one pool.

    Raises:
        DataError: there are none, a file is missing or damaged, or they were made for other inputs.
    """
    files = shard_files(Path(path))
    if not files:
        raise DataError(f"{path}: holds no images-*.safetensors; make some with `edgecompress synthesize`")
    shards = [read_shard(file) for file in files]
    _check_complete(Path(path), shards)
    for shard in shards:
        _check_fits(shard, preprocess)
    return Source(path, pool=SyntheticSet(f"{path} (synthetic)", shards))


def _check_complete(directory: Path, shards: Sequence[Shard]) -> None:
    file = directory / SYNTHESIS_FILE
    if not file.is_file():
        return
    try:
        wanted = read_record(file, SynthesisResult).images
    except ArtefactError as error:
        raise DataError(str(error)) from None
    found = sum(shard.images for shard in shards)
    if found != wanted:
        raise DataError(f"{directory}: {found} of {wanted} images are there; a file is missing")


def _check_fits(shard: Shard, preprocess: Preprocess) -> None:
    wanted = (len(preprocess.mean), *preprocess.size)
    if shard.shape != wanted:
        raise DataError(
            f"{shard.path}: images of {_text(shard.shape)}, the model takes {_text(wanted)}; "
            "make images for this model with `edgecompress synthesize`"
        )
    was, now = ((one.mean, one.std) for one in (shard.preprocess, preprocess))
    if was != now:
        raise DataError(
            f"{shard.path}: made for mean {was[0]} and std {was[1]}, the model has {now[0]} and {now[1]}; "
            "make images for this model with `edgecompress synthesize`"
        )


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _matches(spec: str) -> bool:
    return bool(shard_files(Path(spec)))


READER = Reader(
    "synthetic",
    "a run of `edgecompress synthesize`, or a directory with its images-*.safetensors",
    _matches,
    open_synthetic,
)
