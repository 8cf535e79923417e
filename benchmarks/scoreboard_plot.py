"""The scoreboard as a picture: a panel per network and runtime, accuracy against the share of the time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scoreboard_journal import Row
from scoreboard_names import DENSE, INT8, METHODS, OURS, OURS_INT8, place_name
from scoreboard_page import Board, Entry, boards

from edgecompress.report.axes import Scale, frame
from edgecompress.report.drawing import Drawing, Line, Mark, Shape, Words, to_svg
from edgecompress.report.hues import classes, variables
from edgecompress.report.picture import picture_of

HUES = {
    DENSE: "dense",
    OURS: "accent",
    OURS_INT8: "good",
    INT8: "s2t",
    "torch-pruning": "bad",
    "uniform thinning": "s5g",
    "ALDS": "s4",
    "LR-S2": "s4g",
    "SVD-NAS, as published": "tucker",
}
COLUMNS, PANEL, GAP, LEGEND = 3, (270.0, 220.0), (70.0, 84.0), 60.0
DEEPEST = 20.0
"""Points below dense that are shown; what is worse lies on the lower edge."""
SLOWEST = 1.3
"""Share of the dense network's time that is shown; what is slower lies on the right edge."""


def write_plot(rows: Sequence[Row], file: Path) -> None:
    """Writes a picture (.png) or a page (.html)."""
    drawing = draw(boards(rows))
    if file.suffix == ".png":
        file.write_bytes(picture_of([drawing]))
        return
    style = f"{variables()}{classes()}body{{background:var(--paper)}}text{{font-family:sans-serif}}"
    page = f"<!doctype html><meta charset=utf-8><title>Scoreboard</title><style>{style}</style>"
    file.write_text(f"{page}{to_svg(drawing)}\n", encoding="utf-8")


def draw(found: Sequence[Board]) -> Drawing:
    """Returns all panels in one drawing, with one legend."""
    columns = max(min(COLUMNS, len(found)), 2)
    rows = -(-len(found) // columns)
    width = columns * PANEL[0] + (columns - 1) * GAP[0] + 60
    shapes = _legend()
    for number, board in enumerate(found):
        left = 50 + number % columns * (PANEL[0] + GAP[0])
        top = LEGEND + 40 + number // columns * (PANEL[1] + GAP[1])
        shapes += _panel(board, left, top)
    return Drawing(width, LEGEND + rows * (PANEL[1] + GAP[1]) + 20, "Scoreboard", tuple(shapes))


def _legend() -> list[Shape]:
    shapes: list[Shape] = []
    for number, method in enumerate(METHODS):
        x, y = 10 + number % 5 * 195.0, 12 + number // 5 * 22.0
        shapes.append(_mark((x, y), method, method))
        shapes.append(Words(x + 11, y + 4, method, "ink"))
    told = "ring: trained; on an edge: further out"
    return [*shapes, Words(10 + 4 * 195.0 + 11, 38, told)]


def _panel(board: Board, left: float, top: float) -> list[Shape]:
    everything = [board.dense, *board.entries]
    shares = [one.share for one in everything]
    x = Scale(max(min(shares) - 0.05, 0), min(max(shares) + 0.05, SLOWEST), left, left + PANEL[0])
    scores = [one.top1 for one in everything] + [one.trained_top1 or 0 for one in everything]
    best = max(scores)
    lowest = max(min(one for one in scores if one > 0), board.dense.top1 - DEEPEST)
    room = 0.06 * (best - lowest) or 1.0
    y = Scale(lowest - room, best + room, top + PANEL[1], top)
    shapes = frame(x, y, "share of the dense network's milliseconds", "top-1 %")
    shapes.append(
        Words(left + 60, top - 14, place_name(board.model, board.runtime), "ink", size=14, bold=True)
    )
    for method in METHODS:
        shapes += _marks([one for one in everything if one.method == method], x, y)
    return shapes


def _marks(entries: Sequence[Entry], x: Scale, y: Scale) -> list[Shape]:
    shapes: list[Shape] = []
    places = [(x(one.share), y(one.top1)) for one in entries]
    if len(places) > 1:
        shapes.append(Line(places, HUES[entries[0].method], 1.5 if entries[0].method == OURS else 0.7))
    for one, place in zip(entries, places, strict=True):
        shapes.append(_mark(place, one.method, f"{one.method}: {one.top1:.2f} % at {one.share:.3f}"))
        if one.trained_top1 is not None:
            told = f"{one.method}, trained: {one.trained_top1:.2f} %"
            shapes.append(Mark(place[0], y(one.trained_top1), HUES[one.method], told, kind="ring"))
    return shapes


def _mark(place: tuple[float, float], method: str, label: str) -> Mark:
    return Mark(*place, HUES[method], label, kind="diamond" if method in (INT8, OURS_INT8) else "dot")
