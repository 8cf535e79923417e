"""A report as Markdown, for pull requests and summaries of continuous integration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edgecompress.core.elastic_results import ElasticResult
from edgecompress.core.measurement import Interval
from edgecompress.core.report_results import ReportResult, RunReport
from edgecompress.report.benches import ms
from edgecompress.report.curves import ordered_sizes
from edgecompress.report.doubts import NOT_VALID, doubt_lines, round_doubts
from edgecompress.report.figures import unrecovered_words
from edgecompress.report.html_curves import sizes_words, training_words
from edgecompress.report.numbers import change, count, megabytes

SIZE_HEADERS = ("size", "network of", "MACs", "parameters", "ms", "selection %", "top-1 %")


def report_markdown(result: ReportResult) -> str:
    """Returns a section per run: before and after, milliseconds by device, layers, commands."""
    return "\n".join(line for run in result.runs for line in _run(run)).strip() + "\n"


def _run(run: RunReport) -> Iterator[str]:
    yield f"## {_plain(run.model)}: {_plain(run.name)}\n"
    yield f"{_plain(run.how or run.command)}, {run.created:%Y-%m-%d %H:%M} UTC, seed {run.seed}\n"
    yield from _table(("", "before", "after", "change"), _figures(run))
    if begun := unrecovered_words(run):
        yield f"top-1: {begun}\n"
    if run.times:
        yield from _table(
            ("device", "known by", "before, ms", "after, ms", "speed-up", "verdict"), _times(run)
        )
    if run.elastic is not None:
        yield from _table(SIZE_HEADERS, _sizes(run.elastic))
        yield f"{_plain(sizes_words(run.elastic))}\n"
    if run.training is not None:
        yield f"{_plain(training_words(run.training))}\n"
    if run.recovery:
        yield from _table(("level", "gain", "minutes", "kept", "outcome"), _recovery(run))
    if run.layers:
        yield from _table(
            ("layer", "became", "MACs before", "MACs after", "ms before", "ms after"), _layers(run)
        )
    if run.rounds:
        yield from _table(("round", "predicted, ms", "on the device, ms", "off by"), _rounds(run))
    remarks = (*doubt_lines(run.times), *round_doubts(run.rounds), *run.notes)
    yield from (f"- {_plain(remark)}" for remark in remarks)
    yield "\n```\n" + "\n".join(run.commands).replace("`", "'") + "\n```\n"


def _figures(run: RunReport) -> Iterator[tuple[str, ...]]:
    dense, after = run.dense, run.compressed
    if after.accuracy is not None:
        before = None if dense is None else dense.accuracy
        gained = "" if before is None else f"{after.accuracy.top1 - before.top1:+.2f} pp"
        yield "top-1 %", "" if before is None else f"{before.top1:.2f}", f"{after.accuracy.top1:.2f}", gained
    for name, of, shown in (
        ("parameters", "params", count),
        ("MACs", "macs", count),
        ("weights", "weight_bytes", megabytes),
    ):
        now, was = getattr(after, of), None if dense is None else getattr(dense, of)
        yield name, "" if was is None else shown(was), shown(now), "" if was is None else change(was, now)


def _times(run: RunReport) -> Iterator[tuple[str, ...]]:
    for one in run.times:
        yield (
            f"{one.device}, {one.what}".strip(", "),
            one.known_words,
            ms(one.before_ms) + _bounds(one.before_interval),
            ms(one.after_ms) + _bounds(one.after_interval),
            f"{one.speedup:.2f}" + _bounds(one.speedup_interval),
            one.verdict or "",
        )


def _bounds(interval: Interval | None) -> str:
    return "" if interval is None else f" ({ms(interval.low)} to {ms(interval.high)})"


def _sizes(sizes: ElasticResult) -> Iterator[tuple[str, ...]]:
    named = [(one.name, one.network, one.offered) for one in ordered_sizes(sizes)]
    for name, network, one in (("whole", "", sizes.full), *named):
        yield (
            name,
            "" if network == name else network,
            count(one.macs),
            count(one.params),
            "" if one.predicted_ms is None else ms(one.predicted_ms),
            f"{one.score:.2f}",
            "" if one.accuracy is None else f"{one.accuracy.top1:.2f}",
        )


def _recovery(run: RunReport) -> Iterator[tuple[str, ...]]:
    for one in run.recovery:
        gain = "" if one.gain is None else f"{one.gain:+.2f} pp"
        spent = "" if one.minutes is None else f"{one.minutes:.2f}"
        yield one.level, gain, spent, "" if one.kept is None else "yes" if one.kept else "no", one.outcome


def _rounds(run: RunReport) -> Iterator[tuple[str, ...]]:
    for one in run.rounds:
        measured = ms(one.measured_ms) + (f", {NOT_VALID}" if one.doubts else "")
        yield str(one.number), ms(one.predicted_ms), measured, f"{100 * one.error:+.1f} %"


def _layers(run: RunReport) -> Iterator[tuple[str, ...]]:
    for one in run.layers:
        times = (one.before_ms, one.after_ms)
        became = f"{one.family} {', '.join(map(str, one.ranks))}".strip()
        shown = ("" if each is None else f"{each:.4f}" for each in times)
        yield one.name, became, count(one.macs_before), count(one.macs_after), *shown


def _table(headers: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows:
        yield f"| {' | '.join(map(_plain, row))} |"
    yield ""


def _plain(text: str) -> str:
    """Returns text that stays text: no line breaks, no markup, no HTML."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*\[\]<>|#])", r"\\\1", flat)
