"""Google's `benchmark_model`: the words that start it, and what the text it prints says.

The text is its only result, and builds differ: lines may carry a log level, a logcat tag or the
name of a source file, large numbers have exponents, and percentiles came late. `parse` takes all of
them, also the newer `benchmark_litert_model`, whose summary is in milliseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgecompress.core.measurement import OpTime
from edgecompress.devices.benchmark_operators import NUMBER, parse_operators

PREFIX = re.compile(
    r"\s*(?:\d\d-\d\d \d\d:\d\d:\d\d\.\d+\s+\d+\s+\d+\s+)?"  # logcat's time, process and thread
    r"(?:(?P<tag>[VDIWEF])(?:/\S+\s*\(\s*\d+\)|\s+\S+\s*):\s)?"  # logcat's `I tflite  :`, `I/tflite ( 12):`
    r"(?:(?P<level>VERBOSE|DEBUG|INFO|WARNING|ERROR|FATAL):\s*)?"
    r"(?:\[[\w./-]+:\d+\]\s*)?"  # benchmark_litert_model's `[file.cc:81]`
)
PAIR = re.compile(rf"(\w+)=({NUMBER})")
TIMINGS = re.compile(r"(?:Average inference|Inference) timings in us: (.*)")
TIMING = re.compile(rf"([A-Za-z][A-Za-z ()]*?): ({NUMBER})")
RESULT = re.compile(
    rf"(Model initialization|Warmup|Inference)(?: \((\w+)\))?:\s+({NUMBER})(?: ms)?(?: \((\d+) runs\))?$"
)
FOOTPRINT = re.compile(rf"(?:[Mm]emory )?footprint[^:]*\(MB\): init=({NUMBER}) overall=({NUMBER})")
PEAK = re.compile(rf"(?:Overall peak memory footprint.*|Overall footprint|Peak memory usage):\s+({NUMBER})")
REPLACING = re.compile(
    r"Replacing (\d{1,9})(?: out of (\d{1,9}))? node\(s\) with delegate \(([^)]*)\) node, "
    r"yielding (\d{1,9}) partitions"
)
NOT_DELEGATED = "will not be executed by the delegate"
FAILED = "Benchmarking failed"
SAYS_LITTLE = (
    FAILED,
    "Failed to allocate tensors",
    "Failed to load model",
    "Restored original execution plan",
)
"""Errors that only follow from another one, which is the one to show."""


@dataclass(frozen=True)
class Stretch:
    """Runs in a row, as the program sums them up; None where it does not say."""

    runs: int | None
    mean_ms: float
    min_ms: float | None = None
    max_ms: float | None = None
    std_ms: float | None = None
    p5_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None


@dataclass(frozen=True)
class Delegation:
    """Operators of a file handed to a delegate."""

    delegate: str
    taken: int
    operators: int | None
    """Of the file; None where an old build does not say."""
    parts: int
    """Stretches of the graph: each border costs time."""


@dataclass(frozen=True)
class Report:
    """What one run of the program printed."""

    init_ms: float | None
    first_ms: float | None
    warmup: Stretch | None
    inference: Stretch | None
    """None where the program did not reach its summary."""
    peak_memory_mb: float | None
    delegations: tuple[Delegation, ...]
    delegate_unused: bool
    """The program says that a delegate was asked for and took nothing."""
    operators: tuple[OpTime, ...]
    failure: str | None
    """The most telling error, where the program failed; it may do so and still exit with 0."""


@dataclass(frozen=True)
class _Line:
    text: str
    is_error: bool


def command(
    binary: str,
    graph: str,
    *,
    threads: int,
    min_runs: int,
    min_seconds: float,
    warmup_seconds: float,
    max_seconds: float,
    op_profiling: bool = False,
) -> tuple[str, ...]:
    """Returns the words that measure a file; runs go on until both minima are reached.

    Warm-up and measurement each end after `max_seconds` at the latest, so fewer runs are possible.
    """
    profiling = ("--enable_op_profiling=true", "--max_profiling_buffer_entries=10000") if op_profiling else ()
    return (
        binary,
        f"--graph={graph}",
        f"--num_threads={threads}",
        f"--num_runs={min_runs}",
        f"--min_secs={min_seconds:g}",
        "--warmup_runs=1",
        f"--warmup_min_secs={warmup_seconds:g}",
        f"--max_secs={max_seconds:g}",
        "--use_xnnpack=true",
        *profiling,
    )


def parse(text: str) -> Report:
    """Reads what one run printed; never fails, what is not there is None or empty."""
    lines = [_clean(line) for line in text.splitlines()]
    timings, results = _timings_ms(lines), _results_ms(lines)
    stretches = _stretches(lines) if timings or results else []
    inference = stretches[-1] if stretches else _summary("Inference", timings, results)
    return Report(
        init_ms=_first(timings.get("Init"), results.get("Model initialization")),
        first_ms=_first(timings.get("First inference"), results.get("Warmup first")),
        warmup=stretches[-2] if len(stretches) > 1 else _summary("Warmup", timings, results),
        inference=inference,
        peak_memory_mb=_peak_memory_mb(lines),
        delegations=tuple(_delegations(lines)),
        delegate_unused=any(NOT_DELEGATED in line.text for line in lines),
        operators=parse_operators([line.text for line in lines]),
        failure=_failure(lines, finished=inference is not None),
    )


def delegate_notes(report: Report) -> tuple[str, ...]:
    """Says in words what a reader should know of delegates; empty where one took everything at once."""
    notes = [_delegation_note(one) for one in report.delegations]
    if report.delegate_unused:
        notes.append("the delegate took no operator of this file")
    return tuple(note for note in notes if note is not None)


def last_line(text: str) -> str:
    """Returns the last line that says something, without its log level, at most 160 characters."""
    told = [line.text for line in map(_clean, text.splitlines()) if re.search(r"\w", line.text)]
    return told[-1][:160] if told else "it printed nothing"


def _delegation_note(one: Delegation) -> str | None:
    name = one.delegate.removeprefix("TfLite").removesuffix("Delegate")
    if one.parts == 1 and one.operators in (None, one.taken):
        return None
    share = f"{one.taken} operators" if one.operators is None else f"{one.taken} of {one.operators} operators"
    return f"{name} runs {share}, in {one.parts} part{'s' * (one.parts != 1)}"


def _clean(line: str) -> _Line:
    match = PREFIX.match(line)
    assert match is not None, "every part of the prefix is optional"
    is_error = match["level"] in ("ERROR", "FATAL") or match["tag"] in ("E", "F")
    return _Line(line[match.end() :].strip(" \r"), is_error)


def _timings_ms(lines: Iterable[_Line]) -> dict[str, float]:
    """Returns the line `Inference timings in us: Init: 17187, ...` by name; the old form has bare names."""
    found: dict[str, float] = {}
    for line in lines:
        if match := TIMINGS.match(line.text):
            read = _numbers(TIMING.findall(match[1]))
            found = {name.removesuffix(" (avg)"): us / 1e3 for name, us in read.items()}
    if "no stats" in found:  # what the very first builds called it
        found["Inference"] = found.pop("no stats")
    return found


def _results_ms(lines: Iterable[_Line]) -> dict[str, float]:
    """Returns the block BENCHMARK RESULTS, as `Inference median`, and `Inference runs` for the count."""
    found: dict[str, float] = {}
    for line in lines:
        if match := RESULT.match(line.text):
            name = f"{match[1]} {match[2] or ''}".strip()
            found |= _numbers([(name, match[3]), (f"{match[1]} runs", match[4] or "")])
    return found


def _stretches(lines: Iterable[_Line]) -> list[Stretch]:
    """Returns the `count=...` lines: warm-up, where there is one, then measurement."""
    found = [_numbers(PAIR.findall(line.text)) for line in lines if line.text.startswith("count=")]
    return [_stretch(us) for us in found if us.get("count", 0) >= 1]


def _numbers(pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Returns what can be a time or a count by name; anything else was not told."""
    read = {name: float(text) for name, text in pairs if text}
    return {name: value for name, value in read.items() if math.isfinite(value) and value >= 0}


def _stretch(us: Mapping[str, float]) -> Stretch:
    runs = int(us["count"])
    if "avg" not in us:  # one run, or all alike: only `curr` is printed
        same_ms = us.get("curr", 0.0) / 1e3
        return Stretch(runs, same_ms, same_ms, same_ms, 0.0 if runs > 1 else None, same_ms, same_ms, same_ms)
    ms = {name: value / 1e3 for name, value in us.items()}
    rest = {f"{name}_ms": ms.get(name) for name in ("min", "max", "std", "p5", "median", "p95")}
    return Stretch(runs, ms["avg"], **rest)


def _summary(name: str, timings: Mapping[str, float], results: Mapping[str, float]) -> Stretch | None:
    """Returns a stretch of which there is no `count=...` line, from the summary at the end."""
    mean_ms = _first(results.get(f"{name} avg"), timings.get(name))
    if mean_ms is None:
        return None
    runs = results.get(f"{name} runs")
    rest = {f"{one}_ms": results.get(f"{name} {one}") for one in ("min", "max", "std", "p5", "median", "p95")}
    return Stretch(None if runs is None else int(runs), mean_ms, **rest)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _peak_memory_mb(lines: Iterable[_Line]) -> float | None:
    found = None
    for line in lines:
        if match := FOOTPRINT.search(line.text) or PEAK.match(line.text):
            found = float(match[match.lastindex or 1])  # a peak that was watched comes last and counts more
    return found


def _delegations(lines: Iterable[_Line]) -> Iterable[Delegation]:
    for line in lines:
        if match := REPLACING.search(line.text):
            operators = None if match[2] is None else int(match[2])
            yield Delegation(match[3], int(match[1]), operators, int(match[4]))


def _failure(lines: Sequence[_Line], *, finished: bool) -> str | None:
    errors = [line.text for line in lines if line.is_error or line.text.startswith(("Failed to ", FAILED))]
    if not errors or (finished and not any(text.startswith(FAILED) for text in errors)):
        return None
    telling = [text for text in errors if not text.startswith(SAYS_LITTLE)]
    return (telling or errors)[-1]
