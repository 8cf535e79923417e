"""Parts that every section of a page is made of: tables, legends, figures in two sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from edgecompress.report.drawing import Drawing, to_svg
from edgecompress.report.hues import FAMILIES
from edgecompress.report.markup import Markup, el, join, text

NARROW, WIDE = (340.0, 300.0), (1040.0, 420.0)
"""Pixels of a figure on a phone and on a screen."""


@dataclass(frozen=True)
class Section:
    """A part of a page with a title; the key is its anchor."""

    key: str
    title: str
    body: Markup


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, label: str, left: int = 1) -> Markup:
    """Returns a table that scrolls within itself; columns after the first `left` hold figures."""

    def cell(position: int, content: str) -> Markup:
        kind = "num" if position >= left else "long" if position else None
        return el("th", content, scope="row") if position == 0 else el("td", content, class_=kind)

    head = (
        el("th", name, scope="col", class_="num" if at >= left else None) for at, name in enumerate(headers)
    )
    body = (el("tr", join(cell(at, content) for at, content in enumerate(row))) for row in rows)
    whole = el("table", el("thead", el("tr", join(head))), el("tbody", join(body)))
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
