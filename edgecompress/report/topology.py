"""What a terminal shows of a topology search."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.genotype import INPUTS, KINDS, SKIP, node_words
from edgecompress.core.topology_results import CellLatency, TopologyResult
from edgecompress.report.figures import split_line, stage_times, where_written
from edgecompress.report.numbers import count, megabytes
from edgecompress.report.tables import add_row, lines, table, title


def topology_text(result: TopologyResult) -> RenderableType:
    """Returns the cells that were found, their network in figures, and where it is."""
    genotype = result.genotype
    how = f"{genotype.cells} cells of {genotype.channels} channels, by {result.method}"
    return Group(
        title(f"{genotype.space} space", how),
        _cells(result),
        Text(),
        _figures(result),
        *split_line(result.split),
        *lines([f"weights: {result.weights}"]),
        *lines(result.notes),
        stage_times(result.seconds),
        where_written(result.run),
        Text(f"next: edgecompress export {result.run}, then edgecompress bench {result.run}"),
    )


def _cells(result: TopologyResult) -> Table:
    rows = table("cell", "node", "adds up")
    genotype = result.genotype
    for kind, cell in zip(KINDS[genotype.space], genotype.kinds(), strict=True):
        for node, words in enumerate(node_words(cell, INPUTS[genotype.space])):
            add_row(rows, "" if node else kind, str(node + 1), words)
    return rows


def _figures(result: TopologyResult) -> Table:
    rows, network = table("", "found", right_from=1), result.network
    if network.accuracy:
        add_row(rows, "top-1 %", f"{network.accuracy.top1:.2f}")
    add_row(rows, "parameters", count(network.params))
    add_row(rows, "MACs", count(network.macs))
    add_row(rows, "weights", megabytes(network.weight_bytes))
    add_row(rows, f"edges that are {SKIP}", f"{100 * result.skip_ratio:.1f} %")
    add_row(rows, f"loss over {result.steps} steps", f"{result.first_loss:.3f} to {result.last_loss:.3f}")
    if result.latency is not None:
        _add_latency(rows, result.latency)
    return rows


def _add_latency(rows: Table, latency: CellLatency) -> None:
    add_row(rows, f"predicted ms, {latency.device} ({latency.provenance})", f"{latency.predicted_ms:.4g}")
    add_row(rows, "of which searched cells", f"{latency.cells_ms:.4g}")
    add_row(rows, "weight of the latency (gamma)", f"{latency.gamma:.3g}")
