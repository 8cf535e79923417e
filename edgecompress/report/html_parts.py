"""Parts that every section of a page is made of: tables, legends, figures in two sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from edgecompress.report.doubts import NOT_VALID
from edgecompress.report.drawing import Drawing, to_svg
from edgecompress.report.hues import FAMILIES
from edgecompress.report.markup import Markup, el, join, text

NARROW, WIDE = (340.0, 300.0), (800.0, 350.0)
"""Pixels of a figure on a phone and on a screen; it grows and shrinks a little with them."""


@dataclass(frozen=True)
class Section:
    """A part of a page with a title; the key is its anchor."""

    key: str
    title: str
    body: Markup


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    label: str,
    left: int = 1,
    drawn: int | None = None,
    stacked: bool = False,
) -> Markup:
    """Returns a table that scrolls within itself; columns after the first `left` hold figures.

    On a phone the column number `drawn`, which holds bars, makes room for the figures, and the rows of a
    `stacked` table become lists of names and values: nothing that matters has to be scrolled to.
    """

    def kind(at: int) -> str | None:
        return "drawn" if at == drawn else "num" if at >= left else "long" if at else None

    def cell(at: int, content: str) -> Markup:
        if at == 0:
            return el("th", content, scope="row")
        return el("td", content, class_=kind(at), data_label=headers[at] if stacked else None)

    head = (
        el("th", name, scope="col", class_=None if kind(at) == "long" else kind(at))
        for at, name in enumerate(headers)
    )
    body = (el("tr", join(cell(at, content) for at, content in enumerate(row))) for row in rows)
    whole = el(
        "table",
        el("thead", el("tr", join(head))),
        el("tbody", join(body)),
        class_="stacked" if stacked else "bars" if drawn is not None else None,
    )
    return el("div", whole, class_="scroll", role="region", aria_label=label, tabindex="0")


def figure(draw: Callable[[float, float], Drawing | None], caption: str = "") -> Markup | None:
    """Returns a figure for phones and one for screens; the style sheet shows one of them."""
    narrow, wide = draw(*NARROW), draw(*WIDE)
    if narrow is None or wide is None:
        return None
    told = el("figcaption", caption, class_="small muted") if caption else Markup("")
    return el("figure", to_svg(narrow, class_="narrow"), to_svg(wide, class_="wide"), told)


def legend(hues: Iterable[str]) -> Markup:
    """Returns what the colours of layers stand for, in a fixed order."""
    used = set(hues)
    items = (
        el("li", el("span", class_=f"swatch swatch-{hue}", aria_hidden="true"), words)
        for hue, words in FAMILIES.items()
        if hue in used
    )
    return el("ul", join(items), class_="legend", aria_label="Colours")


def swatched(hue: str, words: str) -> Markup:
    """Returns words after a square of a colour."""
    return join([el("span", class_=f"swatch swatch-{hue}", aria_hidden="true"), " ", text(words)])


def pairs(entries: Iterable[tuple[str, str]]) -> Markup:
    """Returns names with a text each."""
    return el("dl", join(join([el("dt", name), el("dd", words)]) for name, words in entries), class_="pair")


def doubt_badge() -> Markup:
    """Returns the mark of a time that is not valid."""
    return el("span", NOT_VALID, class_="badge bad")


def warned(lines: Iterable[str]) -> Markup:
    """Returns lines that must not be missed, each as a sentence of its own."""
    return join(el("p", line[:1].upper() + line[1:], class_="bad") for line in lines)


def share_bar(part: float, whole: float) -> Markup:
    """Returns a thin bar: how much of the whole is left; what is above it fills the bar."""
    filled = 100 * min(max(part / whole, 0.0), 1.0) if whole > 0 else 100.0
    return el(
        "svg",
        el("rect", x="0", y="0", width="100%", height="100%", class_="fill-faint"),
        el("rect", x="0", y="0", width=f"{filled:.2f}%", height="100%", class_="fill-accent"),
        class_="left",
        aria_hidden="true",
    )


def folded(summary: str, body: Markup) -> Markup:
    """Returns what is shown when asked for."""
    return el("details", el("summary", summary), body)


def aligned(value: float, largest: float) -> str:
    """Returns milliseconds with as many decimals as the largest of their column needs for four digits."""
    decimals = max(3 - math.floor(math.log10(largest)), 0) if largest > 0 else 0
    return f"{value:.{decimals}f}"


def minutes_text(minutes: float) -> str:
    """Returns a time as people say it."""
    return f"{60 * minutes:.1f} s" if minutes < 1 else f"{minutes:.1f} min"
