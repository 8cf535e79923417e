"""How far a long job is. Library code is handed a `Progress` and says nothing unless it is a loud one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

T = TypeVar("T")


class Progress(Protocol):
    """Shows how far loops are."""

    def track(self, items: Iterable[T], description: object, total: int | None = None) -> Iterator[T]:
        """Yields `items` and shows how many have gone; loops may be nested.

        `total` is their number, for iterables that do not know their length. What is shown is the text of
        `description`, asked for anew with each item: it may say how things stand.
        """


@dataclass(frozen=True)
class _Silence:
    def track(self, items: Iterable[T], description: object, total: int | None = None) -> Iterator[T]:
        yield from items


NO_PROGRESS: Progress = _Silence()
"""Shows nothing."""


@dataclass(frozen=True)
class _BarPerLoop:
    bars: Bars

    def track(self, items: Iterable[T], description: object, total: int | None = None) -> Iterator[T]:
        if total is None and isinstance(items, Sized):
            total = len(items)
        task = self.bars.add_task(str(description), total=total)
        try:
            for item in items:
                yield item
                self.bars.update(task, advance=1, description=str(description))
        finally:
            self.bars.remove_task(task)


@contextlib.contextmanager
def terminal_progress() -> Iterator[Progress]:
    """Yields a progress that draws bars with the time left on stderr; silent where stderr is no terminal.

    The bars are gone afterwards. rich keeps to NO_COLOR by itself.
    """
    if not sys.stderr.isatty():
        yield NO_PROGRESS
        return
    from rich import progress as rich_progress  # slow to import, so not before there is something to show
    from rich.console import Console

    columns = (
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(bar_width=24),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _BarPerLoop(bars)
