"""What must be said of times that are not valid, wherever they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgecompress.core.report_results import TimePair


def place_words(time: TimePair) -> str:
    """Returns the device in short, and whose time it is where that is a file."""
    return ", ".join(filter(None, (time.device.split(",")[0], time.file)))


def doubt_lines(times: Iterable[TimePair]) -> Iterator[str]:
    """Yields a line for each time that is not valid, with the reasons."""
    for time in times:
        if time.doubts:
            yield f"not valid: {place_words(time)}: {'; '.join(time.doubts)}"
