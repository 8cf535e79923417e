"""The same work on several devices at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from edgecompress.core.progress import Progress

W = TypeVar("W")
R = TypeVar("R")
T = TypeVar("T")


class _Stopped(Exception):
    """Another device has failed, or the user wants to stop."""


def at_once(
    task: Callable[[W, Progress], R], work: Sequence[W], *, names: Sequence[str], progress: Progress
) -> list[R]:
    """Returns what the task makes of each piece of work, in order; `names` tell their progress apart.

    When one fails, or Ctrl-C is pressed, the others end at the next step of their progress.
    """
    if len(work) == 1:
        return [task(work[0], progress)]
    stop = threading.Event()
    with ThreadPoolExecutor(len(work)) as pool:
        futures = [
            pool.submit(task, one, _OneOfMany(progress, name, stop))
            for one, name in zip(work, names, strict=True)
        ]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
        for future in done:  # before those that were stopped, which say nothing of the reason
            future.result()
        return [future.result() for future in futures]


@dataclass(frozen=True)
class _OneOfMany:
    """Says which device is meant, and ends its work when it should stop."""

    shared: Progress
    name: str
    stop: threading.Event

    def track(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        for item in self.shared.track(items, f"{self.name}: {description}", total):
            if self.stop.is_set():
                raise _Stopped
            yield item
