"""What `bench` measured, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.measurement import BenchResult, Comparison, Conditions, DeviceBench, Measurement
from edgecompress.report.tables import add_row, lines, table, title

_MOST_OPERATORS = 10


def bench_text(result: BenchResult) -> RenderableType:
    """Returns a table per device: milliseconds with their interval, speed-ups and whether to believe them."""
    parts: list[RenderableType] = []
    for bench in result.benches:
        parts += _device_part(result, bench)
    parts += lines(_earlier(result.earlier))
    return Group(*parts)


def _device_part(result: BenchResult, bench: DeviceBench) -> list[RenderableType]:
    return [
        title(_subject(bench), f"{result.preset}, files in turns"),
        _files(result, bench),
        *lines(_alike(bench.measurements)),
        *lines(_remarks(bench)),
        *_profiles(bench.measurements),
        Text(),
    ]


def _subject(bench: DeviceBench) -> str:
    first = bench.measurements[0].conditions
    return first.device if bench.device in first.device else f"{bench.device}: {first.device}"


def _files(result: BenchResult, bench: DeviceBench) -> Table:
    score = "p90" if result.score == "p90" else "ms"
    rows = table("file", "runtime", score, _interval_name(bench), "p90", "runs", "speed-up", "", right_from=2)
    rows.columns[-1].justify = "left"
    compared = {one.other: one for one in bench.comparisons}
    for one in bench.measurements:
        add_row(rows, *_cells(one, compared.get(one.file.name), score=result.score))
    return rows


def _interval_name(bench: DeviceBench) -> str:
    return f"{100 * bench.measurements[0].summary.interval_ms.confidence:.0f} % interval"


def _cells(one: Measurement, compared: Comparison | None, *, score: str) -> tuple[str, ...]:
    summary = one.summary
    counts = summary.p90_ms if score == "p90" and summary.p90_ms is not None else summary.median_ms
    low, high = summary.interval_ms.low, summary.interval_ms.high
    return (
        one.file.name,
        one.conditions.runtime,
        ms(counts),
        f"{ms(low)} - {ms(high)}",
        "-" if summary.p90_ms is None else ms(summary.p90_ms),
        str(summary.runs),
        "" if compared is None else f"{compared.speedup:.2f}x",
        "" if compared is None else compared.verdict,
    )


def ms(value: float) -> str:
    """Returns milliseconds with three significant digits or more."""
    decimals = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f}"


def _alike(measurements: Iterable[Measurement]) -> list[str]:
    """Returns a line per runtime about the conditions all its files had."""
    return list(dict.fromkeys(_conditions(one.conditions) for one in measurements))


def _conditions(one: Conditions) -> str:
    cores = f"on core {', '.join(map(str, one.cores))}" if one.cores else "not pinned"
    threads = "1 thread" if one.threads == 1 else f"{one.threads} threads"
    governor = f", governor {one.governor}" if one.governor else ""
    return f"{one.provenance} with {one.runtime} {one.runtime_version}, {threads} {cores}{governor}"


def _remarks(bench: DeviceBench) -> list[str]:
    found = [_sentence(one) for one in bench.comparisons]
    for one in bench.measurements:
        if one.validity.reasons:
            mark = "" if one.validity.valid else "not valid: "
            found.append(f"{one.file.name}: {mark}{'; '.join(one.validity.reasons)}")
        found += [f"{one.file.name}: {note}" for note in one.notes]
    return found


def _sentence(one: Comparison) -> str:
    return f"{one.other} against {one.baseline}: {one.statement}"


def _earlier(comparisons: Iterable[Comparison]) -> list[str]:
    return [f"{_sentence(one)}; not measured in turns, so drift counts" for one in comparisons]


def _profiles(measurements: Iterable[Measurement]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for one in measurements:
        if one.operators:
            parts += [Text(), title(one.file.name, "where the time goes"), _operators(one)]
    return parts


def _operators(one: Measurement) -> Table:
    rows = table("operator", "kind", "ms", "of all", right_from=2)
    total = sum(each.mean_ms for each in one.operators) or 1.0
    for each in sorted(one.operators, key=lambda each: -each.mean_ms)[:_MOST_OPERATORS]:
        add_row(rows, each.name, each.kind, ms(each.mean_ms), f"{100 * each.mean_ms / total:.1f} %")
    return rows
