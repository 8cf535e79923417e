"""What `bench` measured, as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from edgecompress.core.measurement import BenchResult, Comparison, Conditions, DeviceBench, Measurement
from edgecompress.report.doubts import NOT_VALID
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
        title(f"{_subject(bench)}:", _heading(result, bench.measurements)),
        _files(bench),
        *_comparisons(bench.comparisons),
        *_remarks(bench.measurements),
        Text(),
        *lines(_how(result, bench.measurements)),
        *_profiles(bench.measurements),
    ]


def _subject(bench: DeviceBench) -> str:
    name = bench.measurements[0].conditions.device
    return name if bench.device in name else f"{bench.device}, {name}"


def _heading(result: BenchResult, measurements: Iterable[Measurement]) -> str:
    if _exact(measurements):
        return "times modelled from counted instructions"
    return f"preset {result.preset}, files interleaved"


def _exact(measurements: Iterable[Measurement]) -> bool:
    """Returns whether nothing was timed, so that there is nothing to be sure or unsure of."""
    return all(burst.exact for one in measurements for burst in one.bursts)


def _files(bench: DeviceBench) -> Table:
    """Returns a row per file; columns that would say nothing, or the same everywhere, are left out."""
    runtimes = [one.conditions.runtime for one in bench.measurements]
    several = len(set(runtimes)) > 1
    timed = [] if _exact(bench.measurements) else bench.measurements
    columns = {
        "file": [one.file.name for one in bench.measurements],
        "runtime": runtimes if several else [],
        f"{_statistic(bench)} ms": [ms(one.summary.median_ms) for one in bench.measurements],
        _interval_name(bench): [_interval(one) for one in timed],
        "p90": [_p90(one) for one in timed] if _knows_p90(timed) else [],
    }
    shown = {header: cells for header, cells in columns.items() if cells}
    rows = table(*shown, right_from=2 if several else 1)
    for cells in zip(*shown.values(), strict=True):
        add_row(rows, *cells)
    return rows


def _statistic(bench: DeviceBench) -> str:
    if _exact(bench.measurements):
        return "modelled"
    return " or ".join(dict.fromkeys(one.summary.statistic for one in bench.measurements))


def _interval_name(bench: DeviceBench) -> str:
    return f"{_percent(bench.measurements[0].summary.interval_ms.confidence)} interval"


def _interval(one: Measurement) -> str:
    return f"{ms(one.summary.interval_ms.low)} - {ms(one.summary.interval_ms.high)}"


def _knows_p90(measurements: Iterable[Measurement]) -> bool:
    return any(one.summary.p90_ms is not None for one in measurements)


def _p90(one: Measurement) -> str:
    return "-" if one.summary.p90_ms is None else ms(one.summary.p90_ms)


def ms(value: float) -> str:
    """Returns milliseconds with four significant digits or more."""
    decimals = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(decimals, 0)}f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _comparisons(comparisons: Sequence[Comparison]) -> list[RenderableType]:
    """Returns a table per baseline: how each of its files compares."""
    parts: list[RenderableType] = []
    for baseline in dict.fromkeys(one.baseline for one in comparisons):
        compared = [one for one in comparisons if one.baseline == baseline]
        parts += _table_of(f"against {baseline}", [(one.other, Text(one.statement)) for one in compared])
    return parts


def _earlier(comparisons: Iterable[Comparison]) -> list[RenderableType]:
    compared = [(one.other, Text(one.statement)) for one in comparisons]
    return _table_of("against the earlier result (not interleaved, so drift counts)", compared)


def _table_of(header: str, entries: Sequence[tuple[str, Text]]) -> list[RenderableType]:
    """Returns names with a text each under one heading, or nothing."""
    if not entries:
        return []
    rows = table("", "")
    rows.show_header = False
    for name, text in entries:
        add_row(rows, name, text)
    return [Text(f"\n{header}"), Padding(rows, (0, 0, 0, 2))]


def _remarks(measurements: Sequence[Measurement]) -> list[RenderableType]:
    """Returns what to doubt or know of each file; what holds for all comes once, and first."""
    told = {one.file.name: _doubts(one) for one in measurements}
    first, *others = told.values()
    shared = [text for text in first if others and all(text in other for other in others)]
    own = {name: [text for text in texts if text not in shared] for name, texts in told.items()}
    entries = {_ALL: shared} | own
    return _table_of("remarks", [(name, _joined(texts)) for name, texts in entries.items() if texts])


def _doubts(one: Measurement) -> list[str]:
    return [*([] if one.validity.valid else [NOT_VALID]), *one.validity.reasons, *one.notes]


def _joined(texts: Sequence[str]) -> Text:
    return Text("; ").join(Text(text, style="bold red" if text == NOT_VALID else "") for text in texts)


def _how(result: BenchResult, measurements: Sequence[Measurement]) -> list[str]:
    """Returns how much was measured, with what, and what all files had alike."""
    conditions = [one.conditions for one in measurements]
    timed = not _exact(measurements)
    found = [_how_much(measurements)] if timed else []
    found += dict.fromkeys(map(_pinning, conditions))
    found += dict.fromkeys(f"{one.provenance} with {one.runtime} {one.runtime_version}" for one in conditions)
    if any(one.provenance == "emulated" for one in conditions):
        found.append("emulated: never quote these times as measured on a real device")
    if result.score == "p90" and timed:
        unknown = "" if _knows_p90(measurements) else ", which this runtime does not report"
        found.append(f"the score of this preset is p90{unknown}")
    return found


def _how_much(measurements: Sequence[Measurement]) -> str:
    runs = sorted(one.summary.runs for one in measurements)
    each = f"{runs[0]}" if runs[0] == runs[-1] else f"{runs[0]} to {runs[-1]}"
    return f"{measurements[0].summary.bursts} rounds, {each} runs per file"


def _pinning(one: Conditions) -> str:
    word = "core" if len(one.cores) == 1 else "cores"
    cores = f"on {word} {', '.join(map(str, one.cores))}" if one.cores else "not pinned to a core"
    threads = "1 thread" if one.threads == 1 else f"{one.threads} threads"
    return f"{threads} {cores}{f', governor {one.governor}' if one.governor else ''}"


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
