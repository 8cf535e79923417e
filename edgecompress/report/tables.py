"""The tables and lines all reports are made of."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table
from rich.text import Text

from edgecompress.report.doubts import NOT_VALID


def table(*headers: str, right_from: int | None = None) -> Table:
    """Returns an empty table; columns from number `right_from` on hold figures.

    Long names are folded, never cut.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for position, header in enumerate(headers):
        figures = right_from is not None and position >= right_from
        made.add_column(header, justify="right" if figures else "left", overflow="fold", no_wrap=figures)
    return made


def add_row(rows: Table, *cells: str | Text) -> None:
    """Adds cells as they are: text in [brackets] is part of a name here, not rich's markup."""
    rows.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def title(subject: str, rest: str) -> Text:
    """Returns a heading: its subject in bold."""
    return Text.assemble((subject, "bold"), f" {rest}\n")


def lines(texts: Iterable[str]) -> list[Text]:
    """Returns each text on a line of its own, as it is."""
    return [Text(line) for line in texts]


def doubted(texts: Iterable[str]) -> list[Text]:
    """Returns lines in which what is not valid stands out."""
    found = lines(texts)
    for line in found:
        line.highlight_words([NOT_VALID], "bold red")
    return found
