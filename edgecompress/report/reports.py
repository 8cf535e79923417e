"""What a terminal shows of `report`, `runs` and `init`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.report_results import InitResult, ReportResult, RunLine, RunReport, RunsResult
from edgecompress.report.benches import ms
from edgecompress.report.doubts import doubt_lines, place_words, reasons_words, round_doubts
from edgecompress.report.figures import COMPRESSED, TRAINED, before_after, unrecovered_words
from edgecompress.report.numbers import change, count
from edgecompress.report.tables import add_row, doubted, lines, table, title

_DIRECTORIES = re.compile(r"(?:^|(?<=:))/.*/")
"""Of a model in a file, as in `/home/me/nets/my_net.py:build` or `cells:/home/me/genotype.json`."""


def report_text(result: ReportResult) -> RenderableType:
    """Returns the figures of every run, and which files were written."""
    parts: list[RenderableType] = []
    for run in result.runs:
        parts += [title(run.name, f"{run.model}, {run.how or run.command}"), _figures(run)]
        begun = unrecovered_words(run)
        parts += lines([f"top-1: {begun}"] if begun else [])
        parts += [*lines(_times(run)), *doubted(_doubts(run)), *lines(run.notes), Text()]
    written = (Text.assemble("written to ", (file, "bold")) for file in result.written)
    return Group(*parts, *written)


def _figures(run: RunReport) -> Table:
    if run.dense is not None:
        return before_after(run.dense, run.compressed, names=TRAINED if run.training else COMPRESSED)
    rows = table("", "found", right_from=1)
    if run.compressed.accuracy:
        add_row(rows, "top-1 %", f"{run.compressed.accuracy.top1:.2f}")
    add_row(rows, "parameters", count(run.compressed.params))
    add_row(rows, "MACs", count(run.compressed.macs))
    return rows


def _times(run: RunReport) -> Iterator[str]:
    for one in run.times:
        yield (
            f"{one.how_known} ms, {place_words(one)}: {ms(one.before_ms)} to {ms(one.after_ms)}, "
            f"{one.speedup:.2f} times as fast"
        )


def _doubts(run: RunReport) -> Iterator[str]:
    yield from doubt_lines(run.times)
    yield from round_doubts(run.rounds)


def runs_text(result: RunsResult) -> RenderableType:
    """Returns a row per run: what it is of, when it was made, and its figures."""
    if not result.runs:
        return Text(f"{result.runs_dir}: holds no run; make one with `edgecompress quickstart`")
    rows = table("run", "made", "top-1", "ms", "MACs", right_from=2)
    for one in result.runs:
        figures = (_top1(one), _milliseconds(one), _macs(one))
        add_row(rows, "\n  ".join(_names(one)), _made(one), *figures)
    return Group(rows, *doubted(line for one in result.runs for line in _remarks(one)))


def _names(one: RunLine) -> Iterator[str]:
    """Yields the run, what it is of, and whose milliseconds it has; of a path the last part is enough."""
    yield one.name
    yield f"{one.command}, {_DIRECTORIES.sub('', one.model)}"
    if one.file:
        yield f"ms of {one.file}"


def _remarks(one: RunLine) -> Iterator[str]:
    if one.problem:
        yield f"{one.name}: {one.problem}"
    if one.doubts:
        yield f"{one.name}: milliseconds not valid: {reasons_words(one.doubts)}"


def _made(one: RunLine) -> str:
    return "unfinished" if one.created is None else f"{one.created:%Y-%m-%d %H:%M}"


def _top1(one: RunLine) -> str:
    return "" if one.top1 is None else f"{one.top1:.2f}"


def _milliseconds(one: RunLine) -> str:
    """Times that were not measured, or are not valid, are marked, so that nobody takes them for more."""
    if one.after_ms is None or one.how_known is None:
        return ""
    mark = {"measured": "", "emulated": " e", "predicted": " p"}[one.how_known]
    return f"{ms(one.after_ms)}{mark}{' ?' if one.doubts else ''}"


def _macs(one: RunLine) -> str:
    if one.macs is None:
        return ""
    return count(one.macs) if one.macs_before is None else change(one.macs_before, one.macs)


def init_text(result: InitResult) -> RenderableType:
    """Returns what was found out, the file, and the commands to go on with."""
    return Group(
        title(result.model, "can be used"),
        *lines(result.facts),
        Text.assemble("\nwritten to ", (result.file, "bold")),
        *lines(["next:", *(f"  {command}" for command in result.next)]),
    )
