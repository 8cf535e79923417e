"""Figures as lists of shapes, so that a page and a picture show the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgecompress.report.markup import Markup, el, join

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line through points, in a colour of `hues`."""

    points: Sequence[Point]
    hue: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Area:
    """A filled polygon."""

    points: Sequence[Point]
    hue: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Words:
    """Text on a baseline."""

    x: float
    y: float
    words: str
    hue: str = "muted"
    anchor: Literal["start", "middle", "end"] = "start"
    size: float = 12
    bold: bool = False


@dataclass(frozen=True)
class Mark:
    """A point that says something when it is looked at."""

    x: float
    y: float
    hue: str
    label: str
    radius: float = 4.5
    kind: Literal["dot", "ring", "diamond"] = "dot"


Shape = Line | Area | Words | Mark


@dataclass(frozen=True)
class Drawing:
    """A figure of so many pixels."""

    width: float
    height: float
    title: str
    shapes: tuple[Shape, ...]


def to_svg(drawing: Drawing, *, class_: str = "") -> Markup:
    """Returns a figure for a page; its marks can be reached with the mouse and with arrow keys."""
    marks = [shape for shape in drawing.shapes if isinstance(shape, Mark)]
    first = marks[0] if marks else None
    return el(
        "svg",
        join(_shape_svg(shape, tabbed=shape is first) for shape in drawing.shapes),
        class_=f"figure {class_}".strip(),
        viewBox=f"0 0 {drawing.width:g} {drawing.height:g}",
        width=f"{drawing.width:g}",
        height=f"{drawing.height:g}",
        role="group" if marks else "img",
        aria_label=drawing.title,
        data_roving=bool(marks),
    )


def _shape_svg(shape: Shape, *, tabbed: bool) -> Markup:
    match shape:
        case Line():
            dashes = "4 4" if shape.dashed else None
            return el(
                "polyline",
                points=_points(shape.points),
                fill="none",
                class_=f"line-{shape.hue}",
                stroke_width=f"{shape.width:g}",
                stroke_dasharray=dashes,
                stroke_linejoin="round",
            )
        case Area():
            return el(
                "polygon",
                points=_points(shape.points),
                class_=f"fill-{shape.hue}",
                fill_opacity=f"{shape.opacity:g}",
            )
        case Words():
            return el(
                "text",
                shape.words,
                x=f"{shape.x:.1f}",
                y=f"{shape.y:.1f}",
                class_=f"fill-{shape.hue}",
                text_anchor=None if shape.anchor == "start" else shape.anchor,
                font_size=f"{shape.size:g}",
                font_weight="600" if shape.bold else None,
            )
        case Mark():
            return _mark_svg(shape, tabbed=tabbed)


def _mark_svg(mark: Mark, *, tabbed: bool) -> Markup:
    x, y, r = mark.x, mark.y, mark.radius
    look = f"fill-{mark.hue}" if mark.kind != "ring" else f"fill-card line-{mark.hue}"
    body = (
        el("polygon", points=_points(diamond(mark)), class_=f"{look} line-card", stroke_width="1.5")
        if mark.kind == "diamond"
        else el("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{r:g}", class_=look, stroke_width="2")
    )
    # a larger invisible circle: fingers are not as exact as a mouse
    reach = el("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{max(r + 6, 11):g}", fill="transparent")
    return el(
        "g",
        reach,
        body,
        class_="mark",
        role="img",
        tabindex="0" if tabbed else "-1",
        aria_label=mark.label,
        data_tip=mark.label,
    )


def diamond(mark: Mark) -> list[Point]:
    """Returns the corners of a diamond."""
    x, y, r = mark.x, mark.y, mark.radius * 1.45
    return [(x, y - r), (x + r, y), (x, y + r), (x - r, y)]


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
