"""What `export` wrote, as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.results import ExportedFile, ExportResult
from edgecompress.report.numbers import megabytes, shape, share
from edgecompress.report.tables import add_row, lines, table, title


def export_text(result: ExportResult) -> RenderableType:
    """Returns a row per file: how close to PyTorch it is, and what it consists of."""
    calibrated = result.calibration_images
    return Group(
        title(result.model.source, "exported, each file run and compared with PyTorch"),
        files_table(result),
        *lines(_inputs(result)),
        *lines([f"compared on {result.parity_images}; off by: largest difference over the largest output"]),
        *lines([f"int8 calibrated on {calibrated}"] if calibrated else []),
        *lines(result.warnings),
        *lines(_notes(result)),
        Text.assemble("written to ", (result.directory, "bold"), ", figures in export.json"),
    )


def files_table(result: ExportResult) -> Table:
    """Returns a row per file; `off by` is the largest difference as a share of the largest output."""
    rows = table("file", "by", "size", "same top-1", "off by", "ops", "transposes", right_from=2)
    for one in result.files:
        add_row(rows, *_cells(one))
    return rows


def _cells(one: ExportedFile) -> tuple[str, ...]:
    parity, graph = one.parity, one.graph
    return (
        one.file,
        one.converter,
        megabytes(one.size_bytes),
        share(parity.top1_agreement, 1),
        f"{parity.max_rel_diff:.1e}",
        str(sum(graph.operators.values())),
        str(graph.transposes),
    )


def _inputs(result: ExportResult) -> list[str]:
    """Returns a line per format about the images its files take."""
    return list(
        dict.fromkeys(
            f"{one.format} files take one image as {one.layout}, {shape(one.graph.input_shape)} "
            f"in {one.graph.input_type}"
            for one in result.files
        )
    )


def _notes(result: ExportResult) -> list[str]:
    notes = []
    for one in result.files:
        outside = one.graph.outside_delegate
        if outside:
            kinds = ", ".join(f"{number} {kind}" for kind, number in outside.items())
            notes.append(f"{one.file}: outside XNNPACK: {kinds}")
        notes += [f"{one.file}: {note}" for note in one.notes]
    return notes
