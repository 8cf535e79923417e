"""What must be said of times that are not valid, wherever they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from edgecompress.core.report_results import TimePair
from edgecompress.core.search_results import Round

NOT_VALID = "not valid"
_FIGURE = re.compile(r"\d+(?:\.\d+)?")


def place_words(time: TimePair) -> str:
    """Returns the device in short, and whose time it is where that is a file."""
    return ", ".join(filter(None, (time.device.split(",")[0], time.file)))


def doubt_lines(times: Iterable[TimePair]) -> Iterator[str]:
    """Yields a line for each time that is not valid, with the reasons."""
    for time in times:
        if time.doubts:
            yield f"{NOT_VALID}: {place_words(time)}: {reasons_words(time.doubts)}"


def round_doubts(rounds: Iterable[Round]) -> Iterator[str]:
    """Yields a line about the rounds of a search that are not valid, with the reasons."""
    found = [one for one in rounds if one.doubts]
    if found:
        numbers = [str(one.number) for one in found]
        which = f"round {numbers[0]}" if len(found) == 1 else f"rounds {', '.join(numbers)}"
        yield f"{NOT_VALID}: {which}: {reasons_words(reason for one in found for reason in one.doubts)}"


def reasons_words(reasons: Iterable[str]) -> str:
    """Returns reasons in a row; of those that differ in their figures only, the one with the largest."""
    strongest: dict[str, str] = {}
    for reason in reasons:
        kind = _FIGURE.sub("#", reason)
        strongest[kind] = max(strongest.get(kind, reason), reason, key=_first_figure)
    return "; ".join(strongest.values())


def _first_figure(reason: str) -> float:
    found = _FIGURE.search(reason)
    return float(found[0]) if found else 0.0
