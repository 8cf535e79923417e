"""Figures that several reports show: a model before and after, its images, stages and where it is."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from edgecompress.core.report_results import RunReport
from edgecompress.core.results import ModelSummary, SplitSummary
from edgecompress.report.numbers import change, count, megabytes
from edgecompress.report.tables import add_row, lines, table

COMPRESSED, TRAINED = ("dense", "compressed"), ("before", "trained")
"""What the two networks are called."""


def before_after(
    dense: ModelSummary, compressed: ModelSummary, *, names: tuple[str, str] = COMPRESSED
) -> Table:
    """Returns a model in four figures, dense and compressed side by side."""
    rows = table("", *names, "change", right_from=1)
    if dense.accuracy and compressed.accuracy:
        before, after = dense.accuracy.top1, compressed.accuracy.top1
        add_row(rows, "top-1 %", f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f} pp")
    add_row(rows, "parameters", *_pair(dense.params, compressed.params))
    add_row(rows, "MACs", *_pair(dense.macs, compressed.macs))
    sizes = dense.weight_bytes, compressed.weight_bytes
    add_row(rows, "weights", *map(megabytes, sizes), change(*sizes))
    return rows


def _pair(before: int, after: int) -> tuple[str, str, str]:
    return count(before), count(after), change(before, after)


def unrecovered_words(run: RunReport) -> str:
    """Returns the accuracy that recovery began with; nothing where there was none."""
    begun = None if run.unrecovered is None else run.unrecovered.accuracy
    return "" if begun is None else f"{begun.top1:.2f} % before recovery"


def split_line(split: SplitSummary | None) -> list[Text]:
    """Returns which images were used for what."""
    if split is None:
        return []
    parts = f"{split.calibration} calibration, {split.selection} selection, {split.report} report"
    return lines([f"images: {parts}, from {split.source}, seed {split.seed}"])


def stage_times(seconds: dict[str, float]) -> Text:
    """Returns the seconds of each stage and of all; `all` is not a stage."""
    stages = {stage: spent for stage, spent in seconds.items() if stage != "all"}
    listed = ", ".join(f"{stage} {spent:.1f}" for stage, spent in stages.items())
    return Text(f"seconds: {listed}; {seconds.get('all', sum(stages.values())):.1f} in all")


def where_written(run: str) -> Text:
    """Returns where a run is, and how to load it."""
    return Text.assemble("written to ", (run, "bold"), f'\nin Python: edgecompress.load("{run}")')


def left_alone(skipped: Iterable[tuple[str, str]]) -> list[Text]:
    """Returns a line for each layer that was not touched, with the reason."""
    return lines(f"left alone: {name}: {reason}" for name, reason in skipped)
