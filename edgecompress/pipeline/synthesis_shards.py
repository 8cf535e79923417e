"""Deals out batches of synthetic images to the processes of `torchrun` and keeps what they made.

The first process keeps files and says what is missing. A batch that was being made when all were killed is
made again, and comes out the same.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from pydantic import JsonValue
from torch import nn

from edgecompress.core.memo import Memo
from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.synthesis_results import ShardSummary, SynthesisSettings
from edgecompress.data.synthetic_shards import shard_bytes, shard_name
from edgecompress.nets.sources import LoadedModel
from edgecompress.train.norm_statistics import WatchedNetwork
from edgecompress.train.parallel import is_first, processes, rank
from edgecompress.train.synthesis import ImageBatch, make_images

T = TypeVar("T")
Made = tuple[bytes, ShardSummary]
"""Content of a file, and what to say of it."""


@dataclass(frozen=True)
class SynthesisJob:
    """Which images to make of what."""

    loaded: LoadedModel
    network: WatchedNetwork
    settings: SynthesisSettings
    images: int
    seed: int
    model_sha256: str
    progress: Progress = NO_PROGRESS

    @property
    def sizes(self) -> tuple[int, ...]:
        """Images of every shard. The last one may be smaller; it is cut from a whole batch."""
        size = self.settings.batch_images
        return tuple(min(size, self.images - start) for start in range(0, self.images, size))

    def made(self, number: int) -> Made:
        """Makes a shard."""
        begun = time.perf_counter()
        ref = self.loaded.ref
        assert ref.classes is not None, "loading a model counts its classes"
        batch = ImageBatch(number, ref.input_shape, ref.classes, self.seed)
        found = make_images(self.network, batch, self.settings, progress=self.progress)
        kept = self.sizes[number]
        labels = None if found.labels is None else found.labels[:kept]
        content = shard_bytes(found.images[:kept], labels, ref.preprocess, self._told(number))
        summary = ShardSummary(
            file=shard_name(number),
            images=kept,
            start_loss=found.start_loss,
            end_loss=found.end_loss,
            statistics_loss=found.statistics_loss,
            asked_class=found.asked_class,
            iterations=found.iterations,
            stopped=found.stopped,
            seconds=round(time.perf_counter() - begun, 3),
        )
        return content, summary

    def _told(self, number: int) -> dict[str, JsonValue]:
        return {
            "model": self.loaded.ref.source,
            "model_sha256": self.model_sha256,
            "settings": self.settings.model_dump(mode="json"),
            "seed": self.seed,
            "shard": number,
        }


def make_shards(job: SynthesisJob, memo: Memo) -> tuple[ShardSummary, ...]:
    """Makes all shards that the memo of the first process lacks, and returns what is said of each.

    Files are in the memo of the first process afterwards.
    """
    missing = _told([number for number in range(len(job.sizes)) if not _is_kept(memo, number)])
    rounds = [missing[start : start + processes()] for start in range(0, len(missing), processes())]
    for numbers in job.progress.track(rounds, "batches of images"):
        own = job.made(numbers[rank()]) if rank() < len(numbers) else None
        for number, made in zip(numbers, _gathered(own), strict=False):
            assert made is not None
            _keep(memo, number, made)
    return _told(tuple(_summary(memo, number) for number in range(len(job.sizes)) if is_first()))


def sha256_of_weights(network: nn.Module) -> str:
    """Returns the SHA-256 of all parameters and buffers with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.numpy().tobytes())
    return digest.hexdigest()


def _is_kept(memo: Memo, number: int) -> bool:
    path = memo.path(shard_name(number))
    return path is not None and path.is_file()


def _keep(memo: Memo, number: int, made: Made) -> None:
    content, summary = made
    # the file last: it says that a shard is finished
    memo.record(shard_name(number), ShardSummary, lambda: summary)

    def write(path: Path) -> None:
        path.write_bytes(content)

    memo.file(shard_name(number), write)


def _summary(memo: Memo, number: int) -> ShardSummary:
    def lost() -> ShardSummary:
        raise AssertionError(f"nothing is known of {shard_name(number)}")

    return memo.record(shard_name(number), ShardSummary, lost)


def _told(found: T) -> T:
    """Returns what the first process found."""
    if processes() == 1:
        return found
    answer: list[object] = [found]
    dist.broadcast_object_list(answer, src=0)
    return answer[0]  # type: ignore[return-value]


def _gathered(own: Made | None) -> list[Made | None]:
    """Returns what all processes made to the first one, and nothing to others."""
    if processes() == 1:
        return [own]
    found: list[Made | None] = [None] * processes()
    dist.gather_object(own, found if is_first() else None, dst=0)
    return found if is_first() else []
