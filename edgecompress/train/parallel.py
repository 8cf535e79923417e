"""Several processes on one search or training: each takes its share of every batch, sums are those of all.

Started by `torchrun`, which sets RANK and WORLD_SIZE; without it there is one process and nothing to do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from edgecompress.errors import DeviceError

LONGEST_WAIT = timedelta(days=1)
"""Others wait while the first process measures on a device."""


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Joins the processes of `torchrun` over gloo for as long as the context lasts."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    # addresses of processes that died before torchrun started all again must not be found
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store, own, world = next(rendezvous("env://", timeout=LONGEST_WAIT))
    store = dist.PrefixStore(f"edgecompress, attempt {attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=own, world_size=world, timeout=LONGEST_WAIT)
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise DeviceError(
            "torchrun: another process has ended, or cannot be reached; what was finished is kept: start all "
            "again, or let torchrun do it with --max-restarts 3"
        ) from None
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Returns the number of this process, from 0."""
    return dist.get_rank() if _many() else 0


def processes() -> int:
    """Returns how many there are."""
    return dist.get_world_size() if _many() else 1


def is_first() -> bool:
    """Tells whether this process is the one that writes files."""
    return rank() == 0


def own_share(items: Tensor) -> Tensor:
    """Returns the items of this process; the shares of all processes make up the whole."""
    return items[rank() :: processes()]


def add_up_(tensor: Tensor) -> None:
    """Makes a tensor the sum of those of all processes."""
    if _many():
        dist.all_reduce(tensor)


def add_up_all_(tensors: Sequence[Tensor]) -> None:
    """Makes every tensor the sum of those of all processes, in one message."""
    if not _many() or not tensors:
        return
    flat = torch.cat([one.flatten() for one in tensors])
    dist.all_reduce(flat)
    start = 0
    for own in tensors:
        own.copy_(flat[start : start + own.numel()].view_as(own))
        start += own.numel()


def same_everywhere(value: float) -> float:
    """Returns the value of the first process: clocks and files may tell others something else."""
    if not _many():
        return value
    told = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(told, src=0)
    return float(told)


def _many() -> bool:
    return dist.is_available() and dist.is_initialized()
