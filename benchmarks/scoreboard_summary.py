"""The scoreboard in one table: accuracy at equal milliseconds, a line per network, runtime and point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scoreboard_journal import Row
from scoreboard_names import COMPRESSED, INT8, OURS_INT8, place_name
from scoreboard_page import Board, Entry, boards, first_at, is_over


def summary(rows: Sequence[Row]) -> str:
    """Returns the table: top-1 as compressed, then an arrow and top-1 as trained where that was tried."""
    head = ["network and where it runs", "of the dense ms", *COMPRESSED]
    return "\n".join(
        [_line(head), "|---" * len(head) + "|", *(one for each in boards(rows) for one in _lines(each))]
    )


def int8_summary(rows: Sequence[Row]) -> str:
    """Returns what int8 does to the dense network, and what ours adds to it."""
    head = ["network and where it runs", "dense top-1 %", INT8, OURS_INT8]
    found = [
        _line([place_name(one.model, one.runtime), f"{one.dense.top1:.2f}", *_int8_cells(one)])
        for one in boards(rows)
    ]
    return "\n".join([_line(head), "|---" * len(head) + "|", *found])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _lines(board: Board) -> Iterator[str]:
    for number, point in enumerate(board.points):
        cells = [_cell(board, board.find(method, point)) for method in COMPRESSED]
        yield _line(["" if number else place_name(board.model, board.runtime), f"{point:.2f}", *cells])


def _cell(board: Board, one: Entry | None) -> str:
    if one is None or one.point is None:
        return "-"
    texts = [_bold(f"{one.top1:.2f}", one is first_at(board, one.point, trained=False))]
    if one.trained_top1 is not None:
        texts.append(_bold(f"{one.trained_top1:.2f}", one is first_at(board, one.point, trained=True)))
    return " → ".join(texts) + (" !" if is_over(one) else "")


def _bold(text: str, really: bool) -> str:
    return f"**{text}**" if really else text


def _int8_cells(board: Board) -> list[str]:
    alone = board.find(INT8, None)
    both = [board.find(OURS_INT8, point) for point in board.points]
    return [_timed(alone), "; ".join(_timed(one) for one in both if one is not None) or "-"]


def _timed(one: Entry | None) -> str:
    return "-" if one is None else f"{one.top1:.2f} in {one.share:.2f} of the time"
