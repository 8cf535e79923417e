"""What a terminal shows of a recovery."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.recover_results import RecoverResult, Rung
from edgecompress.core.results import ModelSummary
from edgecompress.report.figures import split_line, stage_times, where_written
from edgecompress.report.numbers import count, megabytes
from edgecompress.report.tables import add_row, lines, table, title


def recover_text(result: RecoverResult) -> RenderableType:
    """Returns what every level gained, and the networks dense, compressed and recovered."""
    return Group(
        title(result.plan.model.source, f"recovery of {result.parent}, preset {result.preset}"),
        _ladder(result.ladder),
        Text(),
        *lines(f"{rung.level}: {rung.outcome}" for rung in result.ladder),
        Text(),
        _networks(result),
        *split_line(result.split),
        *lines(f"{step}: {outcome}" for step, outcome in result.steps),
        stage_times(result.seconds),
        where_written(result.run),
        Text(f"next: edgecompress export {result.run}, then edgecompress bench {result.run}"),
    )


def _ladder(rungs: Iterable[Rung]) -> Table:
    """Returns a line per level; gains are those on selection images."""
    rows = table("level", "gain", "divergence", "minutes", "", right_from=1)
    for rung in rungs:
        gain = "" if rung.gain is None else f"{rung.gain:+.2f} pp"
        change = "" if rung.after is None else f"{rung.before.divergence:.4f} -> {rung.after.divergence:.4f}"
        add_row(rows, rung.level, gain, change, f"{rung.minutes:.2f}", _verdict(rung))
    return rows


def _verdict(rung: Rung) -> str:
    if rung.after is None:
        return "passed by"
    return "kept" if rung.kept else "" if rung.level == "none" else "no better"


def _networks(result: RecoverResult) -> Table:
    networks = (result.dense, result.before, result.compressed)
    rows = table("", "dense", "compressed", "recovered", right_from=1)
    if all(one.accuracy for one in networks):
        add_row(rows, "top-1 %", *map(_top1, networks))
        add_row(rows, "against dense", "", *(_lost(result.dense, one) for one in networks[1:]))
    add_row(rows, "parameters", *(count(one.params) for one in networks))
    add_row(rows, "MACs", *(count(one.macs) for one in networks))
    add_row(rows, "weights", *(megabytes(one.weight_bytes) for one in networks))
    return rows


def _top1(one: ModelSummary) -> str:
    return "" if one.accuracy is None else f"{one.accuracy.top1:.2f}"


def _lost(dense: ModelSummary, one: ModelSummary) -> str:
    if dense.accuracy is None or one.accuracy is None:
        return ""
    return f"{one.accuracy.top1 - dense.accuracy.top1:+.2f} pp"
