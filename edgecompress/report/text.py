"""Results as tables for a terminal, readable at 80 columns. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.results import (
    CompressResult,
    DoctorItem,
    DoctorResult,
    InspectResult,
    LayerChange,
    LayerCost,
    ListResult,
    ModelSummary,
    ParityResult,
    QuickstartResult,
)
from edgecompress.core.types import Record
from edgecompress.report.numbers import change, count, megabytes, shape, share


def render(result: Record) -> RenderableType:
    """Returns what a terminal shows of a command's result."""
    match result:
        case InspectResult():
            return inspect_text(result)
        case CompressResult():
            return compress_text(result)
        case QuickstartResult():
            return quickstart_text(result)
        case DoctorResult():
            return doctor_text(result)
        case ListResult():
            return list_text(result)
    raise AssertionError(f"no report for {type(result).__name__}")


def inspect_text(result: InspectResult) -> RenderableType:
    """Returns a table of layers with their costs; the layers the papers compress carry a star."""
    table = _table("layer", "kind", "input", "output", "params", "MACs", "of MACs", right_from=4)
    for layer in result.layers:
        _add_row(table, *_layer_cells(layer, result))
    return Group(
        _title(result.model.source, f"for inputs of {shape(result.model.input_shape)}"),
        table,
        Text(
            f"{count(result.params)} parameters, {count(result.macs)} MACs, {megabytes(result.weight_bytes)}"
        ),
        *_lines([f"* the layers the papers compress ({len(result.targets)})"] if result.targets else []),
        *_skipped(result.skipped),
    )


def _layer_cells(layer: LayerCost, result: InspectResult) -> tuple[str, ...]:
    star = "*" if layer.name in result.targets else ""
    kind = f"{layer.kind} {layer.detail}".strip()
    sizes = (shape(layer.in_shape), shape(layer.out_shape))
    return (
        layer.name + star,
        kind,
        *sizes,
        count(layer.params),
        count(layer.macs),
        share(layer.macs, result.macs),
    )


def compress_text(result: CompressResult) -> RenderableType:
    """Returns the figures before and after, then what became of every layer."""
    return Group(
        _title(result.plan.model.source, "before and after"),
        _before_after(result.dense, result.compressed),
        *_split_line(result),
        Text(),
        _changes(result.layers),
        Text(),
        *_skipped(result.plan.skipped),
        *_lines(f"{step}: {outcome}" for step, outcome in result.steps),
        _times(result.seconds),
        _where(result.run),
    )


def _before_after(dense: ModelSummary, compressed: ModelSummary) -> Table:
    table = _table("", "dense", "compressed", "change", right_from=1)
    if dense.accuracy and compressed.accuracy:
        before, after = dense.accuracy.top1, compressed.accuracy.top1
        _add_row(table, "top-1 %", f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f} pp")
    _add_row(table, "parameters", *_pair(dense.params, compressed.params))
    _add_row(table, "MACs", *_pair(dense.macs, compressed.macs))
    sizes = dense.weight_bytes, compressed.weight_bytes
    _add_row(table, "weights", *map(megabytes, sizes), change(*sizes))
    return table


def _pair(before: int, after: int) -> tuple[str, str, str]:
    return count(before), count(after), change(before, after)


def _split_line(result: CompressResult) -> list[Text]:
    split = result.split
    if split is None:
        return []
    parts = f"{split.calibration} calibration, {split.selection} selection, {split.report} report"
    return _lines([f"images: {parts}, from {split.source}, seed {split.seed}"])


def _changes(layers: Iterable[LayerChange]) -> Table:
    table = _table("layer", "map", "becomes", "ranks", "params", "change", "MACs", "change", right_from=3)
    for layer in layers:
        _add_row(
            table,
            layer.name,
            shape(layer.in_size),
            layer.family,
            ",".join(map(str, layer.ranks)),
            count(layer.params_after),
            change(layer.params_before, layer.params_after),
            count(layer.macs_after),
            change(layer.macs_before, layer.macs_after),
        )
    return table


def quickstart_text(result: QuickstartResult) -> RenderableType:
    """Returns the figures before and after, how the exported files agree, and where they are."""
    compress = result.compress
    table = _table("file", "same top-1", "largest difference", "images", right_from=1)
    for parity in (result.dense_onnx, *result.exports):
        _add_row(table, *_parity_cells(parity, compress.run))
    return Group(
        _title(compress.plan.model.source, "before and after"),
        _before_after(compress.dense, compress.compressed),
        *_split_line(compress),
        Text(),
        _title("Exported files", "against PyTorch on the same images"),
        table,
        Text(),
        Text(f"{result.seconds:.0f} s in all"),
        _where(compress.run),
    )


def _parity_cells(parity: ParityResult, run: str) -> tuple[str, ...]:
    same = share(parity.top1_agreement, 1)
    return parity.file.removeprefix(run).lstrip("/\\"), same, f"{parity.max_abs_diff:.1e}", str(parity.images)


def doctor_text(result: DoctorResult) -> RenderableType:
    """Returns a table of what is there, and one line for each thing that is missing."""
    table = _table("", "found", "needed for")
    for item in result.items:
        _add_row(table, _doctor_name(item), item.found or "-", item.needed_for)
    missing = [item for item in result.items if item.found is None]
    lines = [f"{item.name}{' (required)' if item.required else ''}: {item.how}" for item in missing]
    return Group(table, *_lines(["", "missing:", *(f"  {line}" for line in lines)] if lines else []))


def _doctor_name(item: DoctorItem) -> Text:
    if item.found:
        return Text(item.name)
    return Text(item.name, style="bold red" if item.required else "dim")


def list_text(result: ListResult) -> RenderableType:
    """Returns the names with a line about each."""
    table = _table(result.kind, "")
    for item in result.items:
        _add_row(table, item.name, item.summary)
    return table


def _table(*headers: str, right_from: int | None = None) -> Table:
    """Columns from number `right_from` on hold figures. Long names are folded, never cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for position, header in enumerate(headers):
        figures = right_from is not None and position >= right_from
        table.add_column(header, justify="right" if figures else "left", overflow="fold", no_wrap=figures)
    return table


def _add_row(table: Table, *cells: str | Text) -> None:
    """Adds cells as they are: text in [brackets] is part of a name here, not rich's markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _title(subject: str, rest: str) -> Text:
    return Text.assemble((subject, "bold"), f" {rest}\n")


def _lines(lines: Iterable[str]) -> list[Text]:
    return [Text(line) for line in lines]


def _skipped(skipped: Iterable[tuple[str, str]]) -> list[Text]:
    return _lines(f"left alone: {name}: {reason}" for name, reason in skipped)


def _times(seconds: dict[str, float]) -> Text:
    stages = ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items())
    return Text(f"seconds: {stages}; {sum(seconds.values()):.1f} in all")


def _where(run: str) -> Text:
    return Text.assemble("written to ", (run, "bold"), f'\nin Python: edgecompress.load("{run}")')
