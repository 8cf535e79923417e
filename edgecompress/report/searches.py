"""What a terminal shows of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgecompress.core.search_results import FrontPoint, Latency, Round, SearchResult, Slower
from edgecompress.core.types import Metric
from edgecompress.report.doubts import NOT_VALID, reasons_words, round_doubts
from edgecompress.report.figures import before_after, left_alone, split_line, stage_times, where_written
from edgecompress.report.numbers import change, count, shape
from edgecompress.report.tables import add_row, doubted, lines, table, title

SHOWN_SLOWER = 6
BAR = 24
"""Characters of the longest bar."""


def search_summary(result: SearchResult) -> RenderableType:
    """Returns the figures before and after, and what the device says."""
    return Group(
        title(result.plan.model.source, f"by {result.search}, {_goal(result)}"),
        _figures(result),
        *split_line(result.split),
        *([] if result.latency is None else _loop(result.latency)),
    )


def search_text(result: SearchResult) -> RenderableType:
    """Returns the summary, the front where it was asked for, and what became of every layer."""
    return Group(
        search_summary(result),
        *(_front(result) if result.front_shown else []),
        Text(),
        _changes(result),
        Text(),
        *_slower(result.slower),
        *left_alone(result.plan.skipped),
        *lines(f"{step}: {outcome}" for step, outcome in result.steps),
        stage_times(result.seconds),
        where_written(result.run),
        Text("next: edgecompress export --tflite, then edgecompress bench"),
    )


def _goal(result: SearchResult) -> str:
    if result.max_drop is not None:
        return f"as fast as a loss of {result.max_drop:g} percentage points allows"
    if result.metric == "ms":
        times = result.dense_cost / result.target
        return f"{times:.2f} times as fast as dense: {result.target:.4g} ms"
    return f"at most {count(result.target)} {'MACs' if result.metric == 'macs' else 'parameters'}"


def _figures(result: SearchResult) -> Table:
    rows = before_after(result.dense, result.compressed)
    latency = result.latency
    if latency is not None:
        before, after = latency.dense_predicted_ms, latency.predicted_ms
        add_row(rows, "predicted ms", f"{before:.4g}", f"{after:.4g}", change(before, after))
    if latency is not None and latency.measured_ms and latency.dense_measured_ms:
        before, after = latency.dense_measured_ms, latency.measured_ms
        add_row(rows, f"{latency.provenance} ms", f"{before:.4g}", f"{after:.4g}", change(before, after))
    return rows


def _loop(latency: Latency) -> Iterable[Text]:
    yield Text(f"milliseconds of {latency.device} ({latency.provenance}), table {latency.table}")
    for one in latency.rounds:
        yield from doubted([_round(one)])
    yield from doubted(round_doubts(latency.rounds))
    if latency.comparison is not None:
        yield Text(
            f"dense against compressed, interleaved ({latency.provenance}): {latency.comparison.statement}"
        )
    if latency.doubts:
        yield from doubted([f"{NOT_VALID}: {latency.device}: {reasons_words(latency.doubts)}"])
    if latency.not_measured is not None:
        yield Text(f"not measured: {latency.not_measured}")


def _round(one: Round) -> str:
    error = f"{100 * one.error:+.1f} %"
    told = "on target" if one.met else "too slow"
    doubt = f", {NOT_VALID}" if one.doubts else ""
    what = "plan" if one.file == "spliced" else "exported network"
    return (
        f"round {one.number}: {what} takes {one.measured_ms:.4g} ms, {told}{doubt}; predicted "
        f"{one.predicted_ms:.4g} ({error})"
    )


def _front(result: SearchResult) -> Iterable[RenderableType]:
    unit = {"ms": "ms", "macs": "MACs", "params": "parameters"}[result.metric]
    rows = table(unit, "of dense", "same answers", right_from=0)
    rows.add_column("", no_wrap=True)  # bars begin at the left
    for point in result.front:
        add_row(rows, *_point(point, result.metric), "#" * round(BAR * point.share))
    yield Text("\nThe front: plans no other beats by prediction, before repair")
    yield rows


def _point(point: FrontPoint, metric: Metric) -> tuple[str, str, str]:
    same = "" if point.agreement is None else f"{100 * point.agreement:.1f} %"
    cost = f"{point.cost:.4g}" if metric == "ms" else count(point.cost)
    return cost, f"{100 * point.share:.0f} %", same


def _changes(result: SearchResult) -> Table:
    times = {} if result.latency is None else {one.name: one for one in result.latency.layers}
    rows = table("layer", "map", "becomes", "ranks", "MACs", "change", "ms", "change", right_from=3)
    for layer in result.layers:
        ms = times.get(layer.name)
        add_row(
            rows,
            layer.name,
            shape(layer.in_size),
            layer.family,
            ",".join(map(str, layer.ranks)),
            count(layer.macs_after),
            change(layer.macs_before, layer.macs_after),
            "" if ms is None else f"{ms.after_ms:.3g}",
            "" if ms is None else change(ms.before_ms, ms.after_ms),
        )
    return rows


def _slower(slower: Iterable[Slower]) -> list[Text]:
    """Names the blocks with the most tempting MACs, those of equal layers together; the record has all."""
    found = list(slower)
    if not found:
        return []
    blocks = sum(one.blocks for one in found)
    alike: dict[str, list[str]] = {}
    for one in sorted(found, key=lambda one: (one.cost_share < 1, one.macs_share)):
        alike.setdefault(_tempting(one), []).append(one.layer)
    shown = list(alike.items())[:SHOWN_SLOWER]
    named = (f"  {what}: {_layers(layers)}" for what, layers in shown)
    left_out = "1 block was" if blocks == 1 else f"{blocks} blocks were"
    return lines([f"saves MACs, costs time: {left_out} excluded, such as", *named])


def _tempting(one: Slower) -> str:
    ranks = ",".join(map(str, one.ranks))
    macs, time = 100 * (one.macs_share - 1), 100 * (one.cost_share - 1)
    return f"{one.family} rank {ranks}, {macs:+.0f} % MACs, {time:+.0f} % time"


def _layers(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
