"""A report as a picture: the card, the front and the layers, drawn with Pillow."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgecompress.core.report_results import LayerView, ReportResult, RunReport
from edgecompress.report.benches import ms
from edgecompress.report.charts import compare_chart, front_chart, goal_time
from edgecompress.report.curves import sizes_chart
from edgecompress.report.drawing import Area, Drawing, Line, Mark, Shape, Words, diamond
from edgecompress.report.hues import FAMILIES, LIGHT, hue_of
from edgecompress.report.numbers import change, count

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

WIDTH, MARGIN, SCALE = 1040.0, 40.0, 2
"""Pixels before scaling; twice as many are drawn, so that text stays sharp."""
MOST_LAYERS = 40
ROW = 22.0


def report_picture(result: ReportResult) -> bytes:
    """Returns a PNG with the main figures of one run, or of several side by side."""
    return picture_of(_drawings(result))


def picture_of(drawings: Sequence[Drawing]) -> bytes:
    """Returns a PNG with drawings below each other."""
    from PIL import Image, ImageDraw  # not needed for pages

    height = sum(one.height for one in drawings) + MARGIN * (len(drawings) + 1)
    size = (round((WIDTH + 2 * MARGIN) * SCALE), round(height * SCALE))
    picture = Image.new("RGB", size, LIGHT["paper"])
    pen, top = ImageDraw.Draw(picture, "RGBA"), MARGIN
    for drawing in drawings:
        for shape in drawing.shapes:
            _draw(pen, shape, MARGIN, top)
        top += drawing.height + MARGIN
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _drawings(result: ReportResult) -> list[Drawing]:
    runs = result.runs
    found = [compare_chart(runs, WIDTH, 420)] if len(runs) > 1 else []
    for number, run in enumerate(runs, 1):
        found.append(_card(run, f"{number}  {run.model}" if len(runs) > 1 else run.model))
        if len(runs) == 1:
            sizes = None if run.elastic is None else sizes_chart(run.elastic, WIDTH, 420)
            found += [sizes, front_chart(run, WIDTH, 420), _layers(run)]
    return [one for one in found if one is not None]


def _card(run: RunReport, name: str) -> Drawing:
    """Returns a name and the figures before and after."""
    figures = _figures(run)
    shapes: list[Shape] = [
        Words(0, 30, name, "ink", size=28, bold=True),
        Words(0, 54, f"{run.how or run.command}, {run.name}, {run.created:%Y-%m-%d}", size=14),
    ]
    each = WIDTH / max(len(figures), 1)
    for number, (what, figure, was) in enumerate(figures):
        shapes.append(Words(number * each, 100, what, size=14))
        shapes.append(Words(number * each, 132, figure, "ink", size=26, bold=True))
        shapes.append(Words(number * each, 154, was, size=14))
    return Drawing(WIDTH, 160, "Before and after", tuple(shapes))


def _figures(run: RunReport) -> list[tuple[str, str, str]]:
    time, dense, after = goal_time(run), run.dense, run.compressed
    found = []
    if time is not None:
        changed = change(time.before_ms, time.after_ms)
        found.append((f"ms, {time.known_words}", ms(time.after_ms), f"was {ms(time.before_ms)}, {changed}"))
    if after.accuracy is not None:
        before = dense.accuracy if dense else None
        was = "" if before is None else f"was {before.top1:.2f}, {after.accuracy.top1 - before.top1:+.2f} pp"
        found.append(("top-1 %", f"{after.accuracy.top1:.2f}", was))
    for name, of in (("parameters", "params"), ("MACs", "macs")):
        now = getattr(after, of)
        was = "" if dense is None else f"was {count(getattr(dense, of))}, {change(getattr(dense, of), now)}"
        found.append((name, count(now), was))
    return found


def _layers(run: RunReport) -> Drawing | None:
    """Returns two bars per layer, before and after; of very deep networks those that cost most."""
    if not run.layers:
        return None
    layers = [one for one in run.layers if one.before_ms is not None] or list(run.layers)
    timed = layers[0].before_ms is not None
    most_first = sorted(layers, key=lambda one: -_cost(one, timed=timed)[0])[:MOST_LAYERS]
    shown = [one for one in layers if one in most_first]
    largest = max(max(_cost(one, timed=timed)) for one in shown) or 1.0
    title = f"Where the {'milliseconds' if timed else 'MACs'} went, before (grey) and after"
    shapes: list[Shape] = [Words(0, 18, title, "ink", size=17, bold=True), *_legend(shown)]
    for number, one in enumerate(shown):
        top = 58 + number * ROW
        before, after = _cost(one, timed=timed)
        shapes += [
            _bar(top + 2, 560 * before / largest, "faint"),
            _bar(top + 10, 560 * after / largest, hue_of(one.family)),
        ]
        shapes.append(Words(0, top + 15, _short(one.name)))
        ranks = ", ".join(map(str, one.ranks))
        shapes.append(Words(230, top + 15, f"{one.family} {ranks}".strip()[:22]))
        shapes.append(Words(WIDTH, top + 15, change(before, after), "ink", anchor="end"))
    return Drawing(WIDTH, 64 + ROW * len(shown), title, tuple(shapes))


def _cost(one: LayerView, *, timed: bool) -> tuple[float, float]:
    if timed and one.before_ms is not None and one.after_ms is not None:
        return one.before_ms, one.after_ms
    return float(one.macs_before), float(one.macs_after)


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"...{name[-31:]}"


def _bar(top: float, width: float, hue: str) -> Area:
    left, right, bottom = 390.0, 390.0 + max(width, 1.0), top + 7
    return Area([(left, top), (right, top), (right, bottom), (left, bottom)], hue)


def _legend(layers: list[LayerView]) -> list[Shape]:
    used, at = {hue_of(one.family) for one in layers}, 0.0
    shapes: list[Shape] = []
    for hue, words in FAMILIES.items():
        if hue in used:
            shapes.append(Area([(at, 32), (at + 11, 32), (at + 11, 43), (at, 43)], hue))
            shapes.append(Words(at + 17, 42, words))
            at += 40 + 6.4 * len(words)
    return shapes


def _draw(pen: ImageDraw, shape: Shape, left: float, top: float) -> None:
    def at(point: tuple[float, float]) -> tuple[float, float]:
        return ((point[0] + left) * SCALE, (point[1] + top) * SCALE)

    match shape:
        case Line():
            for start, end in _dashes([at(point) for point in shape.points], dashed=shape.dashed):
                pen.line([start, end], fill=LIGHT[shape.hue], width=max(1, round(shape.width * SCALE)))
        case Area():
            alpha = f"{round(255 * shape.opacity):02x}"
            pen.polygon([at(point) for point in shape.points], fill=LIGHT[shape.hue] + alpha)
        case Words():
            anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
            place = at((shape.x, shape.y))
            weight = SCALE // 2 if shape.bold else 0
            pen.text(
                place,
                shape.words,
                fill=LIGHT[shape.hue],
                anchor=anchor,
                font=_font(shape.size),
                stroke_width=weight,
            )
        case Mark():
            _draw_mark(pen, shape, at)


def _draw_mark(pen: ImageDraw, mark: Mark, at) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    if mark.kind == "diamond":
        pen.polygon([at(point) for point in diamond(mark)], fill=LIGHT[mark.hue])
        return
    r = mark.radius
    box = [*at((mark.x - r, mark.y - r)), *at((mark.x + r, mark.y + r))]
    pen.ellipse(box, fill=LIGHT["card"] if mark.kind == "ring" else LIGHT[mark.hue], outline=LIGHT[mark.hue])


def _dashes(
    points: list[tuple[float, float]], *, dashed: bool
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Returns the pieces of a line; Pillow has no dashes of its own."""
    pieces = list(itertools.pairwise(points))
    if not dashed:
        return pieces
    found = []
    for (x1, y1), (x2, y2) in pieces:
        steps = max(int(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 / (4 * SCALE)), 1)
        along = [(x1 + (x2 - x1) * n / steps, y1 + (y2 - y1) * n / steps) for n in range(steps + 1)]
        found += [(along[n], along[n + 1]) for n in range(0, steps, 2)]
    return found


def _font(size: float) -> FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.load_default(size * SCALE)  # type: ignore[return-value]
