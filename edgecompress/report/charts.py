"""The figures of a report: the front, what saves MACs but no time, singular values, runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgecompress.core.report_results import RunReport, SpectrumView, TimePair
from edgecompress.core.search_results import FrontPoint, Slower
from edgecompress.report.axes import Scale, frame, spanning
from edgecompress.report.drawing import Area, Drawing, Line, Mark, Point, Shape, Words
from edgecompress.report.hues import hue_of
from edgecompress.report.numbers import count

LEFT, RIGHT, TOP, BOTTOM = 52, 18, 34, 50
LEAST_AGREEMENT = 50.0
"""Percent; plans that answer so differently are of no use, and would squeeze the others together."""
LABEL = 15.0
"""Pixels that the number of a run needs."""
UNITS = {"ms": "ms", "macs": "MACs", "params": "parameters"}


def kept_share(run: RunReport) -> float | None:
    """Returns the accuracy that is left, in percent of the dense network's."""
    if run.dense is None or run.dense.accuracy is None or run.compressed.accuracy is None:
        return None
    before = run.dense.accuracy.top1
    return 100 * run.compressed.accuracy.top1 / before if before else None


def goal_time(run: RunReport) -> TimePair | None:
    """Returns the times the search was about, or else the first there are."""
    return run.times[0] if run.times else None


def cost_text(run: RunReport, cost: float) -> str:
    """Returns a cost in the unit of the search."""
    return f"{cost:.4g} ms" if run.metric == "ms" else f"{count(cost)} {UNITS[run.metric or 'macs']}"


def drawn_points(run: RunReport) -> list[tuple[FrontPoint, float]]:
    """Returns the points of the front worth drawing, each with the answers it keeps in percent."""
    found = [(one, 100 * one.agreement) for one in run.front if one.agreement is not None]
    useful = [pair for pair in found if pair[1] >= LEAST_AGREEMENT]
    return useful if len(useful) >= 4 else found


def front_chart(run: RunReport, width: float, height: float) -> Drawing | None:
    """Returns cost against answers kept: plans no other beats, the dense network, and the chosen one."""
    points = drawn_points(run)
    if len(points) < 2 or run.cost is None or run.dense_cost is None:
        return None
    kept, chosen = kept_share(run), _chosen_cost(run)
    xs = [*(one.cost for one, _ in points), chosen, run.dense_cost]
    ys = [*(share for _, share in points), *([] if kept is None else [kept]), 100.0]
    x = spanning(xs, LEFT, width - RIGHT)
    y = spanning(ys, height - BOTTOM, TOP)
    places = [(x(one.cost), y(share)) for one, share in points]
    shapes = frame(x, y, f"{UNITS[run.metric or 'macs']}, whole network", "% of the dense network's answers")
    shapes += _target(run, x, y)
    shapes.append(Line(places, "accent", 2))
    shapes += [
        Mark(px, py, "accent", _point_label(run, one, share), radius=3.5)
        for (px, py), (one, share) in zip(places, points, strict=True)
    ]
    shapes += _ends(run, x, y, kept, chosen)
    return Drawing(width, height, "Accuracy kept against cost", tuple(shapes))


def _chosen_cost(run: RunReport) -> float:
    time = goal_time(run)
    assert run.cost is not None
    return time.after_ms if run.metric == "ms" and time is not None and time.goal else run.cost


def _target(run: RunReport, x: Scale, y: Scale) -> list[Shape]:
    if run.target is None or not x.low < run.target < x.high:
        return []
    at = x(run.target)
    words = Words(at + 6, y.start - 8, f"target {cost_text(run, run.target)}")
    return [Line([(at, y.start), (at, y.end)], "muted", dashed=True), words]


def _point_label(run: RunReport, one: FrontPoint, share: float) -> str:
    return (
        f"{cost_text(run, one.cost)} ({100 * one.share:.0f} % of dense): {share:.1f} % same answers "
        f"before repair, {len(one.choices)} layers changed"
    )


def _ends(run: RunReport, x: Scale, y: Scale, kept: float | None, chosen: float) -> list[Shape]:
    assert run.dense_cost is not None
    dense_x, top = x(run.dense_cost), y(100.0)
    shapes: list[Shape] = [
        Mark(dense_x, top, "dense", f"dense: {cost_text(run, run.dense_cost)}", radius=5),
        Words(dense_x, top - 11, "dense", anchor="middle"),
    ]
    if kept is not None:
        place, height = x(chosen), y(kept)
        label = f"chosen, after repair: {cost_text(run, chosen)}, {kept:.2f} % of the dense accuracy"
        shapes.append(Mark(place, height, "bad", label, radius=6, kind="diamond"))
        shapes.append(Words(place - 10, height - 9, "chosen", "ink", anchor="end", bold=True))
    return shapes


def slower_chart(slower: Sequence[Slower], width: float, height: float) -> Drawing | None:
    """Returns MACs against time of blocks that were left out: what is above the line is slower than dense."""
    if not slower:
        return None
    x = Scale(0.0, 105.0, LEFT, width - RIGHT)
    times = [100 * one.cost_share for one in slower]
    y = spanning([*times, 95.0, 115.0], height - BOTTOM, TOP)
    shapes: list[Shape] = [
        Area(
            [(x.start, y(100)), (x.end, y(100)), (x.end, y.end), (x.start, y.end)],
            "bad",
            0.07,
        ),
        *frame(x, y, "% of the dense layer's MACs", "% of the dense layer's time"),
        Line([(x.start, y(100)), (x.end, y(100))], "bad", 1.5),
        Words(x.end, y.end - 14, "slower than dense", "bad", anchor="end"),
    ]
    shapes += [
        Mark(
            x(100 * one.macs_share),
            y(100 * one.cost_share),
            hue_of(one.family),
            f"{one.layer}, {one.family} rank {', '.join(map(str, one.ranks))}: "
            f"{100 * (one.macs_share - 1):+.0f} % MACs, {100 * (one.cost_share - 1):+.0f} % time",
            radius=4,
        )
        for one in slower
    ]
    return Drawing(width, height, "Blocks that save MACs and cost time", tuple(shapes))


def spectrum_chart(one: SpectrumView, width: float = 168, height: float = 74) -> Drawing:
    """Returns falling singular values with the kept ones filled."""
    x = Scale(0.0, float(one.max_rank), 1, width - 1)
    y = Scale(0.0, 1.0, height - 1, 4)
    each = one.max_rank / len(one.values)  # ranks a value stands for
    stairs = [
        (x(each * at), y(value)) for number, value in enumerate(one.values) for at in (number, number + 1)
    ]
    rank = min(one.rank, one.max_rank)
    steps = [(px, py) for px, py in stairs if px <= x(rank)] or stairs[:1]
    kept = [*steps, (x(rank), steps[-1][1]), (x(rank), y(0)), (x(0), y(0))]
    hue = hue_of(one.family)
    shapes: list[Shape] = [
        Area(kept, hue, 0.28),
        Line(stairs, hue, 1.5),
        Line([(x(rank), y(0)), (x(rank), y.end)], "ink", 1.0, dashed=True),
        Line([(x.start, y(0)), (x.end, y(0))], "faint"),
    ]
    title = (
        f"{one.layer}: {one.max_rank} singular values, {one.rank} kept, "
        f"{100 * one.energy_kept:.1f} % of the energy"
    )
    return Drawing(width, height, title, tuple(shapes))


def compare_chart(runs: Sequence[RunReport], width: float, height: float) -> Drawing | None:
    """Returns accuracy against time of several runs; against MACs unless all have times of one device."""
    if any(run.compressed.accuracy is None for run in runs) or len(runs) < 2:
        return None
    devices = {None if (time := goal_time(run)) is None else (time.device, time.how_known) for run in runs}
    timed = len(devices) == 1 and None not in devices
    after = [_figure(run, timed=timed, dense=False) for run in runs]
    before = [
        (number, _figure(run, timed=timed, dense=True))
        for number, run in enumerate(runs, 1)
        if run.dense and run.dense.accuracy
    ]
    all_places = [*after, *(place for _, place in before)]
    x = spanning([cost for cost, _ in all_places], LEFT, width - RIGHT, margin=0.1)
    y = spanning([top1 for _, top1 in all_places], height - BOTTOM, TOP, margin=0.12)
    name = "ms" if timed else "MACs"
    where = f"{name}, {goal_time(runs[0]).device}" if timed else name  # type: ignore[union-attr]
    shapes = frame(x, y, where, "top-1 %")
    taken: list[Point] = []
    for number, (run, (cost, top1)) in enumerate(zip(runs, after, strict=True), 1):
        label = f"{number}: {run.name}, {count(cost)} {name}, {top1:.2f} %"
        shapes.append(Mark(x(cost), y(top1), "accent", label, radius=6))
        taken.append(_free_place((x(cost), y(top1)), taken))
        shapes.append(Words(*taken[-1], str(number), "ink", anchor="middle", bold=True))
    for (cost, top1), own in _alike(before).items():
        of = "dense" if len(own) == len(runs) else f"dense of {', '.join(map(str, own))}"
        shapes.append(Mark(x(cost), y(top1), "dense", f"{of}: {count(cost)} {name}, {top1:.2f} %", radius=5))
        shapes.append(Words(x(cost), y(top1) - 11, of, anchor="middle"))
    return Drawing(width, height, "Accuracy against cost of all runs", tuple(shapes))


def _free_place(mark: Point, taken: Sequence[Point]) -> Point:
    """Returns where the number of a mark is not on that of another; the first place where none is free."""
    x, y = mark
    places = [(x + 13, y - 7), (x - 13, y - 7), (x + 13, y + 16), (x - 13, y + 16)]
    free = (one for one in places if all(math.dist(one, other) > LABEL for other in taken))
    return next(free, places[0])


def _alike(before: Sequence[tuple[int, Point]]) -> dict[Point, list[int]]:
    """Returns the runs of each dense network, which several may have begun with."""
    found: dict[Point, list[int]] = {}
    for number, place in before:
        found.setdefault(place, []).append(number)
    return found


def _figure(run: RunReport, *, timed: bool, dense: bool) -> tuple[float, float]:
    summary = run.dense if dense else run.compressed
    assert summary is not None and summary.accuracy is not None
    time = goal_time(run)
    if timed and time is not None:
        return (time.before_ms if dense else time.after_ms), summary.accuracy.top1
    return float(summary.macs), summary.accuracy.top1
