"""What `bench` measured, as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.measurement import BenchResult, Comparison, Conditions, DeviceBench, Measurement
from edgecompress.report.tables import add_row, lines, table, title

_MOST_OPERATORS = 10
_ALL = "all files"


def bench_text(result: BenchResult) -> RenderableType:
    """Returns a part per device: milliseconds with their interval, what is faster, what to doubt."""
    parts: list[RenderableType] = []
    for bench in result.benches:
        parts += [*([Text()] if parts else []), *_device_part(result, bench)]
    parts += _earlier(result.earlier)
    parts += lines([f"\nwritten to {result.written}"] if result.written else [])
    return Group(*parts)


def _device_part(result: BenchResult, bench: DeviceBench) -> list[RenderableType]:
    return [
        title(f"{_subject(bench)}:", f"preset {result.preset}, files measured in turns"),
        _files(bench),
        Text(),
        *lines(_how(result, bench.measurements)),
        *_remarks(bench.measurements),
        *_profiles(bench.measurements),
    ]


def _subject(bench: DeviceBench) -> str:
    name = bench.measurements[0].conditions.device
    return name if bench.device in name else f"{bench.device}, {name}"


def _files(bench: DeviceBench) -> Table:
    """Returns a row per file; columns that would say nothing, or the same everywhere, are left out."""
    runtimes = [one.conditions.runtime for one in bench.measurements]
    several = len(set(runtimes)) > 1
    columns = {
        "file": [one.file.name for one in bench.measurements],
        "runtime": runtimes if several else [],
        f"{_statistic(bench)} ms": [ms(one.summary.median_ms) for one in bench.measurements],
        _interval_name(bench): [_interval(one) for one in bench.measurements],
        "p90": [_p90(one) for one in bench.measurements] if _knows_p90(bench.measurements) else [],
        "speed-up": _speedups(bench) if bench.comparisons else [],
    }
    shown = {header: cells for header, cells in columns.items() if cells}
    rows = table(*shown, right_from=2 if several else 1)
    if "speed-up" in shown:
        rows.columns[-1].justify = "left"
    for cells in zip(*shown.values(), strict=True):
        add_row(rows, *cells)
    return rows


def _statistic(bench: DeviceBench) -> str:
    return " or ".join(dict.fromkeys(one.summary.statistic for one in bench.measurements))


def _interval_name(bench: DeviceBench) -> str:
    return f"{_percent(bench.measurements[0].summary.interval_ms.confidence)} interval"


def _interval(one: Measurement) -> str:
    return f"{ms(one.summary.interval_ms.low)} - {ms(one.summary.interval_ms.high)}"


def _knows_p90(measurements: Iterable[Measurement]) -> bool:
    return any(one.summary.p90_ms is not None for one in measurements)


def _p90(one: Measurement) -> str:
    return "-" if one.summary.p90_ms is None else ms(one.summary.p90_ms)


def _speedups(bench: DeviceBench) -> list[str]:
    compared = {one.other: one for one in bench.comparisons}
    names = [one.file.name for one in bench.measurements]
    return [_speedup(compared[name]) if name in compared else "baseline" for name in names]


def _speedup(one: Comparison) -> str:
    """Returns the verdict and its interval, slower as well as faster as a factor above 1."""
    low, high, factor = one.interval.low, one.interval.high, one.speedup
    if one.verdict == "slower":
        low, high, factor = 1 / high, 1 / low, 1 / factor
    digits = 3 if high < 1.02 * low else 2
    verdict = one.verdict if one.verdict == "no difference" else f"{factor:.{digits}f}x {one.verdict}"
    return f"{verdict} ({low:.{digits}f} - {high:.{digits}f})"


def ms(value: float) -> str:
    """Returns milliseconds with three significant digits or more."""
    decimals = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(decimals, 0)}f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _how(result: BenchResult, measurements: Sequence[Measurement]) -> list[str]:
    """Returns how much was measured, and a line per runtime about what all its files had alike."""
    runs = sorted(one.summary.runs for one in measurements)
    each = f"{runs[0]}" if runs[0] == runs[-1] else f"{runs[0]} to {runs[-1]}"
    found = [f"{measurements[0].summary.bursts} rounds, {each} runs per file"]
    found += dict.fromkeys(_conditions(one.conditions) for one in measurements)
    if result.score == "p90":
        found.append(
            "the score of this preset is p90"
            if _knows_p90(measurements)
            else "the score of this preset is p90, which this runtime does not report"
        )
    if any(one.conditions.provenance == "emulated" for one in measurements):
        found.append("emulated: these times say nothing of a real device")
    return found


def _conditions(one: Conditions) -> str:
    cores = f"on core {', '.join(map(str, one.cores))}" if one.cores else "not pinned"
    threads = "1 thread" if one.threads == 1 else f"{one.threads} threads"
    governor = f", governor {one.governor}" if one.governor else ""
    return f"{one.provenance} with {one.runtime} {one.runtime_version}, {threads} {cores}{governor}"


def _remarks(measurements: Sequence[Measurement]) -> list[RenderableType]:
    """Returns what to doubt or know of each file, and once what holds for all."""
    told = [[*one.validity.reasons, *one.notes] for one in measurements]
    shared = [text for text in told[0] if len(told) > 1 and all(text in other for other in told)]
    rows = table("", "remarks")
    for one, texts in zip(measurements, told, strict=True):
        own = [text for text in texts if text not in shared]
        if own or not one.validity.valid:
            add_row(rows, one.file.name, _doubt(one, own))
    if shared:
        add_row(rows, _ALL, "; ".join(shared))
    return [Text(), rows] if rows.row_count else []


def _doubt(one: Measurement, texts: Sequence[str]) -> Text:
    mark = [] if one.validity.valid else [("not valid", "bold red"), ": " if texts else ", see below"]
    return Text.assemble(*mark, "; ".join(texts))


def _earlier(comparisons: Iterable[Comparison]) -> list[RenderableType]:
    rows = table("", "against before; not in turns, so drift counts")
    for one in comparisons:
        add_row(rows, one.other, one.statement)
    return [Text(), rows] if rows.row_count else []


def _profiles(measurements: Iterable[Measurement]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for one in measurements:
        if one.operators:
            parts += [Text(), title(f"{one.file.name}:", "where the time goes"), _operators(one)]
    return parts


def _operators(one: Measurement) -> Table:
    """Returns the slowest operators; measured in a pass of its own, they need not add up to the median."""
    rows = table("operator", "kind", "ms", "of all", right_from=2)
    total = sum(each.mean_ms for each in one.operators) or 1.0
    slowest = sorted(one.operators, key=lambda each: -each.mean_ms)
    for each in slowest[:_MOST_OPERATORS]:
        add_row(rows, each.name, each.kind, ms(each.mean_ms), f"{100 * each.mean_ms / total:.1f} %")
    if rest := slowest[_MOST_OPERATORS:]:
        rest_ms = sum(each.mean_ms for each in rest)
        add_row(rows, f"{len(rest)} others", "", ms(rest_ms), f"{100 * rest_ms / total:.1f} %")
    return rows
