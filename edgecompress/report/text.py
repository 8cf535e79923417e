"""Results as tables for a terminal, readable at 80 columns. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.device import Device
from edgecompress.core.elastic_results import ElasticResult
from edgecompress.core.latency_results import (
    BuildResult,
    CheckResult,
    Forecast,
    TableDifference,
    TableSummary,
)
from edgecompress.core.loop_results import QuickstartResult
from edgecompress.core.measurement import BenchResult
from edgecompress.core.prune_results import PruneResult
from edgecompress.core.recover_results import RecoverResult
from edgecompress.core.report_results import InitResult, ReportResult, RunsResult
from edgecompress.core.results import (
    CompressResult,
    DoctorItem,
    DoctorResult,
    ExportResult,
    InspectResult,
    LayerChange,
    LayerCost,
    ListResult,
)
from edgecompress.core.search_results import SearchResult
from edgecompress.core.synthesis_results import SynthesisResult
from edgecompress.core.topology_results import TopologyResult
from edgecompress.core.train_results import TrainResult
from edgecompress.core.types import Record
from edgecompress.devices.native.build import DevicePrepared
from edgecompress.report.benches import bench_text
from edgecompress.report.devices import device_text, prepared_text
from edgecompress.report.elastic import elastic_text
from edgecompress.report.exports import export_text, files_table
from edgecompress.report.figures import before_after, split_line, stage_times, where_written
from edgecompress.report.latency import (
    build_text,
    check_text,
    difference_text,
    forecast_text,
    table_text,
)
from edgecompress.report.numbers import change, count, megabytes, shape, share
from edgecompress.report.prunes import prune_text
from edgecompress.report.recoveries import recover_text
from edgecompress.report.reports import init_text, report_text, runs_text
from edgecompress.report.searches import search_summary, search_text
from edgecompress.report.syntheses import synthesis_text
from edgecompress.report.tables import add_row, lines, table, title
from edgecompress.report.topology import topology_text
from edgecompress.report.trainings import train_text


def render(result: Record) -> RenderableType:
    """Returns what a terminal shows of a command's result."""
    match result:
        case InspectResult():
            return inspect_text(result)
        case CompressResult():
            return compress_text(result)
        case PruneResult():
            return prune_text(result)
        case RecoverResult():
            return recover_text(result)
        case SearchResult():
            return search_text(result)
        case SynthesisResult():
            return synthesis_text(result)
        case TopologyResult():
            return topology_text(result)
        case TrainResult():
            return train_text(result)
        case QuickstartResult():
            return quickstart_text(result)
        case ExportResult():
            return export_text(result)
        case ElasticResult():
            return elastic_text(result)
        case BenchResult():
            return bench_text(result)
        case BuildResult():
            return build_text(result)
        case Forecast():
            return forecast_text(result)
        case TableSummary():
            return table_text(result)
        case CheckResult():
            return check_text(result)
        case TableDifference():
            return difference_text(result)
        case Device():
            return Text(device_text(result))
        case DevicePrepared():
            return Text(prepared_text(result))
        case DoctorResult():
            return doctor_text(result)
        case ListResult():
            return list_text(result)
        case ReportResult():
            return report_text(result)
        case RunsResult():
            return runs_text(result)
        case InitResult():
            return init_text(result)
    raise AssertionError(f"no report for {type(result).__name__}")


def inspect_text(result: InspectResult) -> RenderableType:
    """Returns a table of layers with their costs; the layers the papers compress carry a star."""
    rows = table("layer", "kind", "input", "output", "params", "MACs", "of MACs", right_from=4)
    for layer in result.layers:
        add_row(rows, *_layer_cells(layer, result))
    return Group(
        title(result.model.source, f"for inputs of {shape(result.model.input_shape)}"),
        rows,
        Text(
            f"{count(result.params)} parameters, {count(result.macs)} MACs, {megabytes(result.weight_bytes)}"
        ),
        *lines([f"* the layers the papers compress ({len(result.targets)})"] if result.targets else []),
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
        title(result.plan.model.source, "before and after"),
        before_after(result.dense, result.compressed),
        *split_line(result.split),
        Text(),
        _changes(result.layers),
        Text(),
        *_skipped(result.plan.skipped),
        *lines(f"{step}: {outcome}" for step, outcome in result.steps),
        stage_times(result.seconds),
        where_written(result.run),
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


def quickstart_text(result: QuickstartResult) -> RenderableType:
    """Returns the figures before and after, how the exported files agree, and what this machine says."""
    run = result.search.run
    return Group(
        search_summary(result.search),
        Text(),
        title("Exported files", "against PyTorch on the same images"),
        files_table(result.export),
        Text(),
        bench_text(result.bench),
        Text(f"\n{result.seconds:.0f} s in all"),
        where_written(run),
        *([] if result.report is None else [Text.assemble("open in a browser: ", (result.report, "bold"))]),
        Text(f"next: edgecompress search --help; your phone: edgecompress bench {run} --device adb"),
    )


def doctor_text(result: DoctorResult) -> RenderableType:
    """Returns a table of what is there, and one line for each thing that is missing."""
    rows = table("", "found", "needed for")
    for item in result.items:
        add_row(rows, _doctor_name(item), item.found or "-", item.needed_for)
    missing = [item for item in result.items if item.found is None]
    hints = [f"  {item.name}{' (required)' if item.required else ''}: {item.how}" for item in missing]
    return Group(rows, *lines(["", "missing:", *hints] if hints else []))


def _doctor_name(item: DoctorItem) -> Text:
    if item.found:
        return Text(item.name)
    return Text(item.name, style="bold red" if item.required else "dim")


def list_text(result: ListResult) -> RenderableType:
    """Returns the names with a line about each."""
    rows = table(result.kind, "")
    for item in result.items:
        add_row(rows, item.name, item.summary)
    return rows


def _skipped(skipped: Iterable[tuple[str, str]]) -> list[Text]:
    return lines(f"left alone: {name}: {reason}" for name, reason in skipped)
