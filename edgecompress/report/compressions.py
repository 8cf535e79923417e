"""What `compress` shows in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.results import CompressResult, LayerChange
from edgecompress.report.figures import before_after, left_alone, split_line, stage_times, where_written
from edgecompress.report.numbers import change, count, shape
from edgecompress.report.tables import add_row, lines, table, title


def compress_text(result: CompressResult) -> RenderableType:
    """Returns the figures before and after, then what became of every layer."""
    return Group(
        title(result.plan.model.source, "before and after"),
        before_after(result.dense, result.compressed),
        *split_line(result.split),
        Text(),
        _changes(result.layers),
        Text(),
        *left_alone(result.plan.skipped),
        *lines(f"{step}: {outcome}" for step, outcome in result.steps),
        stage_times(result.seconds),
        where_written(result.run),
        Text("next: edgecompress export --tflite, then edgecompress bench"),
    )


def _changes(layers: Iterable[LayerChange]) -> Table:
    rows = table("layer", "map", "becomes", "ranks", "params", "change", "MACs", "change", right_from=3)
    for layer in layers:
        add_row(
            rows,
            layer.name,
            shape(layer.in_size),
            layer.family,
            ",".join(map(str, layer.ranks)),
            count(layer.params_after),
            change(layer.params_before, layer.params_after),
            count(layer.macs_after),
            change(layer.macs_before, layer.macs_after),
        )
    return rows
