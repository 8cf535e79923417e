"""Milliseconds before and after, from what a search and `bench` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgecompress.core.measurement import BenchResult, Comparison, DeviceBench, Interval, Measurement
from edgecompress.core.report_results import TimePair
from edgecompress.core.search_results import Latency
from edgecompress.core.store import read_record

TFLITE_SUFFIX = ".tflite"


def read_benches(path: Path) -> tuple[BenchResult, ...]:
    """Reads what was measured of the files of a run.

    Raises:
        ArtefactError: a file is damaged.
    """
    return tuple(read_record(file, BenchResult) for file in sorted(path.glob("bench-*.json")))


def bench_times(bench: BenchResult) -> Iterator[TimePair]:
    """Yields every comparison of two files as milliseconds with their intervals, TFLite first on each device.

    The first one becomes the headline, and TFLite is what runs on the devices that all this is for.
    """
    for one in bench.benches:
        by_name = {each.file.name: each for each in one.measurements}
        for compared in sorted(one.comparisons, key=lambda each: not each.other.endswith(TFLITE_SUFFIX)):
            if compared.baseline in by_name and compared.other in by_name:
                yield _compared(one, compared, by_name[compared.baseline], by_name[compared.other])


def _compared(bench: DeviceBench, one: Comparison, before: Measurement, after: Measurement) -> TimePair:
    how = after.conditions
    name = how.device if bench.device in how.device else f"{bench.device}, {how.device}"
    return TimePair(
        device=name,
        how_known=how.provenance,
        what=f"{one.other}, {how.runtime} {how.runtime_version}",
        file=one.other,
        before_ms=before.summary.median_ms,
        after_ms=after.summary.median_ms,
        before_interval=_open(before.summary.interval_ms),
        after_interval=_open(after.summary.interval_ms),
        speedup=one.speedup,
        speedup_interval=_open(one.interval),
        verdict=one.verdict,
        statement=one.statement,
        doubts=tuple(dict.fromkeys((*before.validity.doubts, *after.validity.doubts))),
    )


def _open(interval: Interval) -> Interval | None:
    """Returns an interval that says something: what is computed and not timed has none."""
    return None if interval.low == interval.high else interval


def search_times(latency: Latency) -> Iterator[TimePair]:
    """Yields what the device said of both networks, and what the table predicted."""
    place, goal = f"{latency.device}, table {Path(latency.table).name}", True
    compared = latency.comparison
    if latency.dense_measured_ms is not None and latency.measured_ms is not None:
        yield TimePair(
            device=place,
            how_known=latency.provenance,
            what="exported network",
            before_ms=latency.dense_measured_ms,
            after_ms=latency.measured_ms,
            speedup=compared.speedup if compared else latency.dense_measured_ms / latency.measured_ms,
            speedup_interval=_open(compared.interval) if compared else None,
            verdict=compared.verdict if compared else None,
            statement=compared.statement if compared else "",
            goal=True,
            doubts=latency.doubts,
        )
        goal = False
    yield TimePair(
        device=place,
        how_known="predicted",
        what="sum of the table",
        before_ms=latency.dense_predicted_ms,
        after_ms=latency.predicted_ms,
        speedup=latency.dense_predicted_ms / latency.predicted_ms,
        goal=goal,
    )


def bench_conditions(benches: tuple[BenchResult, ...]) -> dict[str, str]:
    """Returns what was alike for all files of each measured device, in words."""
    found: dict[str, str] = {}
    for bench in benches:
        for one in bench.benches:
            how = one.measurements[0].conditions
            cores = f"cores {', '.join(map(str, how.cores))}" if how.cores else "not pinned"
            words = (
                how.device,
                how.build,
                f"{how.runtime} {how.runtime_version}",
                f"{how.threads} thread{'s' if how.threads > 1 else ''}",
                cores,
                f"governor {how.governor}" if how.governor else "",
                f"{how.provenance}, preset {bench.preset}, {bench.created:%Y-%m-%d %H:%M} UTC",
            )
            found[f"bench {one.device}"] = "; ".join(word for word in words if word)
    return found
