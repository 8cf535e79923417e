"""What `list` and `doctor` show in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from edgecompress.core.results import DoctorItem, DoctorResult, ListResult
from edgecompress.report.tables import add_row, lines, table


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
