"""Measures all that a space needs, in waves: each tells where the next must look."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from edgecompress.core.latency_table import TableEntry, block_ms
from edgecompress.core.progress import Progress
from edgecompress.latency.journal import Journal
from edgecompress.latency.space import Space, Task, expected_count, pending

Measure = Callable[[Sequence[Task]], Iterator[TableEntry]]
"""Measures blocks on a device and yields each as soon as it is known, in any order."""


def sweep(
    space: Space, journal: Journal, measure: Measure, *, tolerance: float, seed: int, progress: Progress
) -> None:
    """Fills the journal with everything the space needs; what it holds already is not measured again.

    Raises:
        DeviceError: the device fails; the journal keeps what was measured until then.
    """
    total = expected_count(space, _known_ms(journal), tolerance=tolerance)
    entries = _waves(space, journal, measure, tolerance=tolerance, seed=seed)
    for entry in progress.track(entries, "measuring blocks", total):
        journal.add(entry)


def _waves(
    space: Space, journal: Journal, measure: Measure, *, tolerance: float, seed: int
) -> Iterator[TableEntry]:
    rng = random.Random(seed)
    while True:
        wanted = pending(space, _known_ms(journal), tolerance=tolerance)
        tasks = list({task.key: task for task in wanted}.values())
        if not tasks:
            return
        rng.shuffle(tasks)  # neighbours on a curve must not share a slow minute
        yield from measure(tasks)


def _known_ms(journal: Journal) -> dict[str, float]:
    overhead_ms = journal.heading.overhead_ms
    return {key: block_ms(entry, overhead_ms) for key, entry in journal.entries.items()}
