"""Figures of many points: one network in several sizes, and a training epoch by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from edgecompress.core.elastic_results import ElasticResult, ElasticSize, SizeFigures
from edgecompress.core.report_results import TrainingView
from edgecompress.core.train_results import EpochRow
from edgecompress.report.axes import Scale, frame, spanning
from edgecompress.report.charts import BOTTOM, LEFT, RIGHT, TOP
from edgecompress.report.drawing import Drawing, Line, Mark, Shape, Words
from edgecompress.report.numbers import count

MANY_EPOCHS = 60
"""Above these, epochs are a line without marks."""
NAME_WIDTH = 50
"""Pixels."""


def ordered_sizes(result: ElasticResult) -> list[ElasticSize]:
    """Returns the sizes, the one with the most MACs first."""
    return sorted(result.sizes, key=lambda one: one.found.macs, reverse=True)


def _in_ms(result: ElasticResult) -> bool:
    """Tells whether a size was asked for in milliseconds."""
    return any(one.budget.metric == "ms" for one in result.sizes)


def _cost(result: ElasticResult, one: SizeFigures) -> float:
    """Returns milliseconds where sizes were asked for in them, MACs otherwise."""
    return one.predicted_ms if _in_ms(result) and one.predicted_ms is not None else float(one.macs)


def _cost_words(one: SizeFigures) -> str:
    time = "" if one.predicted_ms is None else f", {one.predicted_ms:.4g} ms predicted"
    return f"{count(one.macs)} MACs{time}"


def quality(result: ElasticResult, one: SizeFigures) -> float:
    """Returns top-1 on the report images, or the score on the selection images where no network has it."""
    return one.score if result.full.accuracy is None or one.accuracy is None else one.accuracy.top1


def quality_name(result: ElasticResult) -> str:
    """Returns what `quality` is."""
    if result.full.accuracy is not None:
        return "top-1 %, report images"
    return "top-1 %, selection images" if result.score == "top-1" else "% answered as the whole network"


def sizes_chart(result: ElasticResult, width: float, height: float) -> Drawing | None:
    """Returns cost against accuracy of the networks that are offered, and of those a better one replaced."""
    sizes = ordered_sizes(result)
    figures = [result.full, *(each for one in sizes for each in (one.found, one.offered))]
    x = spanning([_cost(result, one) for one in figures], LEFT, width - RIGHT)
    y = _percents([quality(result, one) for one in figures], height - BOTTOM, TOP)
    unit = f"ms, predicted for {result.device}" if _in_ms(result) else "MACs"
    shapes = frame(x, y, unit, quality_name(result))

    def at(one: SizeFigures) -> tuple[float, float]:
        return x(_cost(result, one)), y(quality(result, one))

    shapes.append(Line(sorted({at(result.full), *(at(one.offered) for one in sizes)}), "accent", 2))
    shapes += [
        Mark(*at(one.found), "bad", f"{_told(result, one.found, one.name)}, not offered", 4, "ring")
        for one in sizes
        if one.network != one.name
    ]
    shapes.append(Mark(*at(result.full), "dense", _told(result, result.full, "whole network"), 5))
    for own in _by_network(sizes).values():
        label = _told(result, own[0].offered, ", ".join(one.name for one in own))
        shapes += _named(at(own[0].offered), own[0].network, label, end=width - RIGHT)
    return Drawing(width, height, "Accuracy against cost of every size", tuple(shapes))


def _percents(values: Sequence[float], start: float, end: float) -> Scale:
    """Returns a scale over percents, with nothing above 100."""
    scale = spanning(values, start, end, margin=0.12)
    return replace(scale, high=min(scale.high, 100.5))


def _named(place: tuple[float, float], name: str, label: str, *, end: float) -> list[Shape]:
    """Returns a mark with its name beside it, on the left where there is no room on the right."""
    x, y = place
    mark = Mark(x, y, "accent", label)
    if x > end - NAME_WIDTH:
        return [mark, Words(x - 9, y + 16, name, "ink", anchor="end", bold=True)]
    return [mark, Words(x + 9, y + 16, name, "ink", bold=True)]


def _by_network(sizes: Sequence[ElasticSize]) -> dict[str, list[ElasticSize]]:
    found: dict[str, list[ElasticSize]] = {}
    for one in sizes:
        found.setdefault(one.network, []).append(one)
    return found


def _told(result: ElasticResult, one: SizeFigures, name: str) -> str:
    return f"{name}: {_cost_words(one)}, {quality(result, one):.2f} {quality_name(result)}"


def epochs_chart(training: TrainingView, width: float, height: float) -> Drawing | None:
    """Returns the score of every epoch, or its loss where nothing judged, and which one was kept."""
    rows = [one for one in training.epochs if math.isfinite(one.loss)]
    if len(rows) < 2:
        return None
    judged = all(one.score is not None for one in rows)
    values = [(one, one.score if judged and one.score is not None else one.loss) for one in rows]
    x = spanning([one.epoch for one in rows], LEFT, width - RIGHT)
    y = (_percents if judged else spanning)([value for _, value in values], height - BOTTOM, TOP)
    shapes = frame(x, y, "epoch", "top-1 %, selection images" if judged else "loss", whole=True)
    shapes.append(Line([(x(one.epoch), y(value)) for one, value in values], "accent", 2))
    if len(rows) <= MANY_EPOCHS:
        shapes += [Mark(x(one.epoch), y(value), "accent", _epoch(one), 3.5) for one, value in values]
    shapes += _kept(training, {one.epoch: value for one, value in values}, x, y)
    return Drawing(width, height, "Accuracy by epoch" if judged else "Loss by epoch", tuple(shapes))


def _epoch(one: EpochRow) -> str:
    score = "" if one.score is None else f", {one.score:.2f} % on the selection images"
    return f"epoch {one.epoch}: loss {one.loss:.4f}{score}"


def _kept(training: TrainingView, values: dict[int, float], x: Scale, y: Scale) -> list[Shape]:
    best = training.best_epoch
    if best is None or best not in values:
        return []
    place = x(best), y(values[best])
    return [
        Mark(*place, "bad", f"epoch {best}: kept", 6, "diamond"),
        Words(place[0], place[1] - 12, "kept", "ink", anchor="middle", bold=True),
    ]
