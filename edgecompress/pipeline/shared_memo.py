"""A memo that the processes of `torchrun` share: the first one finds out and keeps, all others are told.

Searches do the same in every process, in the same order. What is found by a single process this way is also
what keeps them in step: measured milliseconds, files of an earlier process, sums of floats.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from pydantic import BaseModel

from edgecompress.core.memo import Memo
from edgecompress.errors import EdgeCompressError
from edgecompress.train.parallel import is_first, processes

R = TypeVar("R", bound=BaseModel)
T = TypeVar("T")


@contextlib.contextmanager
def own_runs(runs_dir: Path) -> Iterator[Path]:
    """Yields the user's runs to the first process of `torchrun`, and others a directory that goes away."""
    if is_first():
        yield runs_dir
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def shared(memo: Memo) -> Memo:
    """Returns a memo for all processes; the same one where there is no other."""
    return memo if processes() == 1 else SharedMemo(memo)


class SharedMemo(Memo):
    """Asks the memo of the first process; others have directories of their own, for what they are sent."""

    def __init__(self, own: Memo) -> None:
        super().__init__(own.directory)
        self._own = own

    def number(self, name: str, compute: Callable[[], float]) -> float:
        """Returns a number that the first process computed at most once."""
        return _told(lambda: self._own.number(name, compute))

    def record(self, name: str, kind: type[R], compute: Callable[[], R]) -> R:
        """Returns a record that the first process computed at most once."""
        text = _told(lambda: self._own.record(name, kind, compute).model_dump_json())
        return kind.model_validate_json(text)

    def file(self, name: str, write: Callable[[Path], None]) -> Path | None:
        """Returns a file that the first process wrote at most once."""

        def content() -> bytes | None:
            path = self._own.file(name, write)
            return None if path is None else path.read_bytes()

        return self._sent(name, _told(content))

    def path(self, name: str) -> Path | None:
        """Returns where a step may keep what it needs; what the first process has there, all have."""

        def content() -> bytes | None:
            path = self._own.path(name)
            return path.read_bytes() if path is not None and path.is_file() else None

        return self._sent(name, _told(content))

    def alone(self) -> Memo:
        """Returns the memo of this process, for what no other takes part in."""
        return self._own

    def _sent(self, name: str, content: bytes | None) -> Path | None:
        path = self._own.path(name)
        if path is not None and content is not None and not is_first():
            path.write_bytes(content)
        return path


def _told(ask: Callable[[], T]) -> T:
    """Returns what the first process finds, or raises what it raises."""
    answer: list[Any] = [None, None]
    if is_first():
        try:
            answer[0] = ask()
        except EdgeCompressError as error:
            answer[1] = error
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]  # type: ignore[no-any-return]
