"""One network in several sizes, as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.elastic_results import ElasticResult, SizeFigures
from edgecompress.report.curves import ordered_sizes
from edgecompress.report.figures import split_line, stage_times
from edgecompress.report.numbers import change, count, megabytes, share
from edgecompress.report.tables import add_row, lines, table, title


def elastic_text(result: ElasticResult) -> RenderableType:
    """Returns a row per size, largest first, then its files."""
    made = f"by {result.rank_selection}, {result.mode} mode"
    trained = "not trained for it" if result.trained is None else f"trained by {result.trained}"
    return Group(
        title(result.model.source, f"in {len(result.sizes)} sizes {made}; {trained}"),
        _sizes(result),
        *lines(_remarks(result)),
        *split_line(result.split),
        Text(),
        _files(result),
        *lines(f"left whole: {name}: {reason}" for name, reason in result.skipped),
        *lines(result.warnings),
        stage_times(result.seconds),
        Text.assemble("written to ", (result.directory, "bold"), ", figures in elastic.json"),
        *lines(_next(result)),
    )


def _sizes(result: ElasticResult) -> Table:
    timed = result.full.predicted_ms is not None
    heads = ["size", "MACs", "change", "params", *(["ms"] if timed else []), "selection", "report"]
    rows = table(*heads, right_from=1)
    add_row(rows, "whole", *_cells(result, result.full))
    for one in ordered_sizes(result):
        add_row(rows, one.name if one.network == one.name else f"{one.name}*", *_cells(result, one.offered))
    return rows


def _cells(result: ElasticResult, one: SizeFigures) -> list[str]:
    time = [] if one.predicted_ms is None else [f"{one.predicted_ms:.4g}"]
    reported = "" if one.accuracy is None else f"{one.accuracy.top1:.2f}"
    macs = [count(one.macs), change(result.full.macs, one.macs)]
    return [*macs, count(one.params), *time, f"{one.score:.2f}", reported]


def _remarks(result: ElasticResult) -> list[str]:
    score = "top-1 %" if result.score == "top-1" else "answers of the whole network, %"
    found = [f"selection: {score} on selection images; report: top-1 % on report images" + _where(result)]
    for one in ordered_sizes(result):
        if one.network != one.name:
            worse = f"{one.found.score:.2f} at its own size"
            found.append(f"* {one.name} is the network of {one.network}, which fits and is better: {worse}")
    if result.norms is not None:
        found.append(f"batch norms recomputed {result.norms}, on {result.norm_images} training images")
    return found


def _where(result: ElasticResult) -> str:
    return "" if result.device is None else f"; ms predicted for {result.device} ({result.provenance})"


def _files(result: ElasticResult) -> Table:
    rows = table("file", "by", "size", "same top-1", "off by", right_from=2)
    for size in ordered_sizes(result):
        for one in size.files:
            agreed, off = share(one.parity.top1_agreement, 1), f"{one.parity.max_rel_diff:.1e}"
            name = f"{size.name}/exports/{one.file}"
            add_row(rows, name, one.converter, megabytes(one.size_bytes), agreed, off)
    return rows


def _next(result: ElasticResult) -> list[str]:
    """Returns how to load a size, and how to measure all of them in turns."""
    sizes = ordered_sizes(result)
    first = [f"{result.directory}/{one.name}/exports/{one.files[0].file}" for one in sizes if one.files]
    loaded = f'in Python: edgecompress.load("{result.directory}/{sizes[-1].name}")'
    return [loaded, f"next: edgecompress bench {' '.join(first)}"]
