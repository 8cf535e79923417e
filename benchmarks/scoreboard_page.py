"""The scoreboard as Markdown: a table per network and runtime, and who is first where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scoreboard_answers import difference, half_width
from scoreboard_journal import Row
from scoreboard_names import COMPRESSED, DENSE, INT8, METHODS, OURS, OURS_INT8, place_order

OVER = 0.01
"""Share by which a network may be above its point in the last measurement and still be said to meet it."""


@dataclass(frozen=True)
class Entry:
    """A network in the table."""

    method: str
    point: float | None
    made: Row
    measured: Row
    trained: Row | None

    @property
    def top1(self) -> float:
        """Percent, without training."""
        return float(self.made["top1"])

    @property
    def trained_top1(self) -> float | None:
        """Percent, with it."""
        return None if self.trained is None else float(self.trained["top1"])

    @property
    def share(self) -> float:
        """Of the dense network's time."""
        return float(self.measured["share"])


@dataclass(frozen=True)
class Board:
    """One network on one runtime."""

    model: str
    runtime: str
    dense: Entry
    entries: tuple[Entry, ...]
    missing: tuple[tuple[str, float], ...]
    """Methods that cannot reach a point."""

    @property
    def points(self) -> list[float]:
        """Largest first."""
        return sorted({one.point for one in self.entries if one.point is not None}, reverse=True)

    def at(self, point: float) -> list[Entry]:
        """Returns the networks in float32 made for a point, in the order of the table."""
        return [one for one in self.entries if one.point == point and one.method in COMPRESSED]

    def find(self, method: str, point: float | None) -> Entry | None:
        """Returns one network."""
        return next((one for one in self.entries if (one.method, one.point) == (method, point)), None)


def boards(rows: Sequence[Row]) -> list[Board]:
    """Returns what was made and measured, by network and runtime."""
    places = sorted({_place(row) for row in rows}, key=lambda one: place_order(*one))
    found = [_board(*place, [row for row in rows if _place(row) == place]) for place in places]
    return [one for one in found if one is not None]


def _place(row: Row) -> tuple[str, str]:
    return row["model"], row["runtime"]


def _board(model: str, runtime: str, rows: Sequence[Row]) -> Board | None:
    by_kind = {
        kind: {(row["method"], row["point"]): row for row in rows if row["kind"] == kind}
        for kind in ("network", "measured", "recovered")
    }
    made, measured = by_kind["network"], by_kind["measured"]
    entries = [
        Entry(*key, made[key], measured[key], by_kind["recovered"].get(key))
        for key in made
        if key in measured and "top1" in made[key]
    ]
    dense = next((one for one in entries if one.method == DENSE), None)
    if dense is None:
        return None
    entries.sort(key=lambda one: (-(one.point or 2), METHODS.index(one.method)))
    missing = tuple(key for key, row in made.items() if "top1" not in row)
    return Board(model, runtime, dense, tuple(one for one in entries if one is not dense), missing)


def markdown(rows: Sequence[Row]) -> str:
    """Returns all tables."""
    return "\n\n".join("\n".join(_table(one)) for one in boards(rows))


def _table(board: Board) -> Iterator[str]:
    dense = board.dense
    how = dense.measured["how_known"]
    yield f"### {board.model}, {board.runtime}"
    yield ""
    yield (
        f"Dense: {_percent(dense.made)}, {dense.measured['ms']:.3g} ms {how} "
        f"({dense.measured['runtime_version']}, one thread); {dense.made['images']:,} images; "
        f"{dense.made['machine']}, load {dense.measured['load']:g}, {dense.measured['date']}."
    )
    yield ""
    minutes = next((one.trained["minutes"] for one in board.entries if one.trained is not None), None)
    trained = "" if minutes is None else f" trained {minutes:g} min |"
    yield f"| point | method | used as | ms (99 % interval) | of dense | MACs | top-1 % |{trained}"
    yield "|---" * (7 if minutes is None else 8) + "|"
    for one in board.entries:
        yield _line(board, one, with_training=minutes is not None)
    for method, point in board.missing:
        yield f"| {point:g} | {method} | | out of reach | | | |{'' if minutes is None else ' |'}"
    yield ""
    yield from (f"- {one}" for one in statements(board))


def _line(board: Board, one: Entry, *, with_training: bool) -> str:
    is_first = one.point is not None and one is first_at(board, one.point, trained=False)
    low, high = one.measured["ms_interval"]
    exact = one.measured["how_known"] == "emulated"
    ms = f"{one.measured['ms']:.3g}" + ("" if exact else f" ({low:.3g} to {high:.3g})")
    cells = [
        "" if one.point is None else f"{one.point:g}",
        one.method,
        one.made.get("variant", ""),
        ms,
        _share(one),
        f"{100 * one.made['macs']:.0f} %",
        f"**{_percent(one.made)}**" if is_first else _percent(one.made),
    ]
    if with_training:
        led = one.point is not None and one is first_at(board, one.point, trained=True)
        cells.append("" if one.trained is None else _trained(one, one.trained, led=led))
    return f"| {' | '.join(cells)} |"


def _trained(one: Entry, trained: Row, *, led: bool) -> str:
    text, way, before = _percent(trained), trained.get("variant"), one.made.get("variant")
    other = f" ({way})" if way and before and way != before else ""
    return f"**{text}**{other}" if led else f"{text}{other}"


def _share(one: Entry) -> str:
    low, high = one.measured["share_interval"]
    interval = "" if one.measured["how_known"] == "emulated" else f" ({low:.3f} to {high:.3f})"
    return f"{one.share:.3f}{interval}{' !' if is_over(one) else ''}"


def is_over(one: Entry) -> bool:
    """Tells whether a network takes more than its point in the last measurement."""
    return one.point is not None and one.share > one.point * (1 + OVER)


def _percent(row: Row) -> str:
    return f"{row['top1']:.2f} ± {half_width(row['top1'], row['images']):.2f}"


def first_at(board: Board, point: float, *, trained: bool) -> Entry | None:
    """Returns the most accurate network in float32 that was made for a point."""
    known = [one for one in board.at(point) if not trained or one.trained is not None]
    return max(known, key=lambda one: _score(one, trained=trained), default=None)


def _score(one: Entry, *, trained: bool) -> float:
    return float(_row(one, trained=trained)["top1"])


def _row(one: Entry, *, trained: bool) -> Row:
    found = one.trained if trained else one.made
    assert found is not None  # asked of those that have it
    return found


def statements(board: Board) -> list[str]:
    """Returns who is first at every point, where ours is not, and what int8 does."""
    found = []
    for point in board.points:
        found += [_standing(board, point, trained=False)]
        if any(one.trained is not None for one in board.at(point)):
            found += [_standing(board, point, trained=True)]
        found += _over(board, point)
    return [*found, *_quantised(board)]


def _standing(board: Board, point: float, *, trained: bool) -> str:
    entries = [one for one in board.at(point) if not trained or one.trained is not None]
    ours = next((one for one in entries if one.method == OURS), None)
    others = [one for one in entries if one.method != OURS]
    when = f"At {point:g} of the time{', trained' if trained else ''}"
    if ours is None or not others:
        return f"{when} there is nothing to compare."
    best = max(others, key=lambda one: _score(one, trained=trained))
    lead = difference(_row(ours, trained=trained), _row(best, trained=trained))
    told = f"{abs(lead.points):.2f} ± {lead.half_width:.2f} points"
    doubt = ", which may be chance" if lead.may_be_chance else ""
    if lead.points > 0:
        return f"{when} ours is first, by {told} before {best.method}{doubt}."
    return f"{when} **ours is not first**: {best.method} is {told} better{doubt}."


def _over(board: Board, point: float) -> list[str]:
    late = [
        f"{one.method} by {100 * (one.share / point - 1):.1f} %" for one in board.at(point) if is_over(one)
    ]
    return [f"In the last measurement above {point:g} of the time (`!`): {', '.join(late)}."] if late else []


def _quantised(board: Board) -> list[str]:
    """Returns what int8 alone does to the order, and what ours adds to it."""
    alone = board.find(INT8, None)
    if alone is None:
        return []
    told = [f"Int8 alone takes {alone.share:.2f} of the time with {alone.top1:.2f} %."]
    for point in board.points:
        ours, both = board.find(OURS, point), board.find(OURS_INT8, point)
        if ours is not None and alone.share <= point and alone.top1 > ours.top1:
            told.append(f"At {point:g} **int8 alone beats ours in float32**: faster and more accurate.")
        if both is not None:
            told.append(_against_int8(alone, both, point))
    return told


def _against_int8(alone: Entry, both: Entry, point: float) -> str:
    faster = f"{alone.share / both.share:.2f} times as fast as int8 alone"
    return (
        f"Ours for {point:g} in int8: {both.share:.2f} of the dense time, {faster}, "
        f"{both.top1 - alone.top1:+.2f} points against it."
    )
