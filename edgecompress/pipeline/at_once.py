"""The same work on several devices at the same time, each in a thread of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from edgecompress.core.progress import Progress

W = TypeVar("W")
R = TypeVar("R")
T = TypeVar("T")

_STRETCH_S = 0.2


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
    ended: SimpleQueue[Future[R]] = SimpleQueue()  # unlike `wait`, holds no lock when Ctrl-C comes
    with ThreadPoolExecutor(len(work)) as pool:
        try:
            futures = [
                pool.submit(task, one, _OneOfMany(progress, name, stop))
                for one, name in zip(work, names, strict=True)
            ]
            for future in futures:
                future.add_done_callback(ended.put)
            for _ in futures:
                _next(ended).result()  # the first to fail says why; the others only that they were stopped
        finally:
            stop.set()
        return [future.result() for future in futures]


def _next(queue: SimpleQueue[T]) -> T:
    """Waits in short stretches: Ctrl-C just before a long one would be noticed only at its end."""
    while True:
        with contextlib.suppress(Empty):
            return queue.get(timeout=_STRETCH_S)


@dataclass(frozen=True)
class _OneOfMany:
    """Says which device is meant, and ends its work when it should stop."""

    shared: Progress
    name: str
    stop: threading.Event

    def track(self, items: Iterable[T], description: object, total: int | None = None) -> Iterator[T]:
        for item in self.shared.track(items, f"{self.name}: {description}", total):
            if self.stop.is_set():
                raise _Stopped
            yield item
