"""All formats that are fuzzed, and the loop that does it."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz import file_formats, own_formats, record_formats, text_formats
from fuzz.contract import Format, folder_of, outcome

FORMATS: tuple[Format, ...] = (
    *record_formats.FORMATS,
    *text_formats.FORMATS,
    *file_formats.FORMATS,
    *own_formats.FORMATS,
)

LAST = "last-input"
SLOWEST_S = 60
"""One input; more counts as a hang. Generous, for a busy machine."""


@dataclass(frozen=True)
class Counts:
    """What came of many inputs of one format."""

    read: int
    refused: int
    crashes: dict[str, str]
    """By error and place: how it came to it, and an input that does it; any is a bug of ours."""


def count_outcomes(kind: Format, base: Path, inputs: int, number: int) -> Counts:
    """Reads so many damaged files; goes on after a crash, so that all bugs are found at once."""
    counted: Counter[str] = Counter()
    crashes: dict[str, str] = {}
    with folder_of(kind, base) as folder:

        @seed(number)
        @settings(
            max_examples=inputs,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(kind.damaged())
        def read_all(content: bytes) -> None:
            (folder / LAST).write_bytes(content)  # for a crash that ends the process
            try:
                with _not_forever():
                    counted[outcome(kind, folder, content)] += 1
            except BaseException as error:  # noqa: BLE001  all of them are counted and shown
                crashes.setdefault(_place(error), f"{traceback.format_exc()[-3000:]}\n{content[:600]!r}")

        read_all()
    return Counts(counted["read"], counted["refused"], crashes)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/edgecompress/" in one.filename] or list(frames)
    return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"


@contextlib.contextmanager
def _not_forever() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"took over {SLOWEST_S} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SLOWEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
