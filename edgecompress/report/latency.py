"""Latency tables and how well they predict, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from edgecompress.core.latency_results import (
    BuildResult,
    CheckResult,
    Forecast,
    NetworkCheck,
    TableDifference,
    TableSummary,
)
from edgecompress.core.latency_table import Calibration, PlanTiming
from edgecompress.core.measurement import Conditions
from edgecompress.report.numbers import count, shape
from edgecompress.report.tables import add_row, lines, table, title

PLOT_COLUMNS, PLOT_ROWS = 56, 16


def forecast_text(result: Forecast) -> RenderableType:
    """Returns what building a table will take."""
    models = ", ".join(result.models)
    facts = [
        f"{result.layers} kinds of layers, {result.curves} curves, {count(result.candidates)} candidates",
        f"{result.known:,} blocks are known, about {result.measurements:,} will be measured",
        f"{result.networks} whole networks for the calibration",
        f"about {duration(result.seconds)}",
    ]
    return Group(title(result.table, f"on {result.device} for {models}"), *lines(facts))


def build_text(result: BuildResult) -> RenderableType:
    """Returns the tables that were written."""
    return Group(
        *(table_text(one) for one in result.tables),
        *lines(["", f"took {duration(result.seconds)}"]),
    )


def table_text(result: TableSummary) -> RenderableType:
    """Returns what a table holds and how well it predicts."""
    soc = f", {result.soc}" if result.soc else ""
    new = "" if result.added is None else f", {result.added:,} of them new"
    kinds = ", ".join(f"{number:,} {_plural(kind, number)}" for kind, number in result.by_kind.items())
    facts = [
        conditions_line(result.conditions),
        f"{result.dtype} {result.format} files",
        f"{result.entries:,} blocks{new}: {kinds}",
        f"made {result.created:%Y-%m-%d} by edgecompress {result.tool_version}, sha256 {result.sha256[:12]}",
    ]
    return Group(
        title(result.table, f"of {result.device}{soc}, {result.provenance.upper()}"),
        *lines(facts),
        *_calibrations(result.calibrations),
        *lines([""] if result.notes else []),
        *lines(f"- {note}" for note in result.notes),
    )


def _plural(kind: str, number: int) -> str:
    if kind in ("attention", "two branches"):
        return f"of {kind}"
    return kind if number == 1 else f"{kind}s"


def conditions_line(conditions: Conditions) -> str:
    """Returns under which conditions figures were made."""
    cores = ",".join(map(str, conditions.cores)) or "any"
    threads = f"{conditions.threads} thread{'s' if conditions.threads > 1 else ''} on core {cores}"
    return f"{conditions.device}, {conditions.runtime} {conditions.runtime_version}, {threads}"


DOUBTFUL_CALIBRATION = (
    "whole networks took what the sum of their blocks cannot explain, so the device was busy or hot; "
    "run the same `latency build` again while it is idle"
)


def _calibrations(found: Sequence[Calibration]) -> Iterator[RenderableType]:
    if not found:
        yield Text("not calibrated on any network")
        return
    rows = table("network", "input", "dense ms", "scale", "ms/MB", "rest ms", "plans", "error", right_from=2)
    for one in found:
        dense = next((each for each in one.timings if each.plan == "dense"), one.timings[0])
        add_row(
            rows,
            one.network,
            shape(one.input_shape),
            f"{dense.measured_ms:.3f}",
            f"{one.scale:.3f}",
            f"{one.per_megabyte_ms:.3f}",
            f"{one.rest_ms:.3f}",
            str(len(one.timings)),
            f"{100 * one.fit_error:.1f} %",
        )
    yield Text("")
    yield rows
    for one in found:
        if one.is_doubtful:
            yield Text(f"{one.network}: {DOUBTFUL_CALIBRATION}", "yellow")


def check_text(result: CheckResult) -> RenderableType:
    """Returns predicted against measured milliseconds, as tables and plots."""
    blocks = [part for one in result.networks for part in _network(one, result.provenance)]
    head = title(result.table, f"against {result.provenance} {result.device}, plans not used in the fit")
    return Group(head, *blocks)


def _network(one: NetworkCheck, provenance: str) -> Iterator[RenderableType]:
    rows = table("plan", "blocks ms", "predicted ms", f"{provenance} ms", "error", right_from=1)
    for each in one.timings:
        figures = (each.blocks_ms, each.predicted_ms, each.measured_ms)
        add_row(rows, each.plan, *(f"{value:.3f}" for value in figures), f"{100 * each.error:+.1f} %")
    yield Text.assemble((one.network, "bold"))
    yield rows
    yield Text(scatter(one.timings, provenance))
    yield Text(f"{agreement_line(one)}\n")


def agreement_line(one: NetworkCheck) -> str:
    """Returns how well the plans of a network were predicted."""
    ranks = "" if one.rank_correlation is None else f", rank correlation {one.rank_correlation:.3f}"
    return (
        f"{len(one.timings)} plans: off by {100 * one.mean_error:.1f} % on average, "
        f"{100 * one.worst_error:.1f} % at worst{ranks}"
    )


def scatter(timings: Iterable[PlanTiming], provenance: str) -> str:
    """Returns predicted milliseconds upwards against the others to the right; dots are where they agree."""
    points = [(one.measured_ms, one.predicted_ms) for one in timings]
    low, high = min(min(point) for point in points), max(max(point) for point in points)
    span = (high - low) or 1.0
    grid = [[" "] * PLOT_COLUMNS for _ in range(PLOT_ROWS)]
    for column in range(PLOT_COLUMNS):
        grid[PLOT_ROWS - 1 - column * PLOT_ROWS // PLOT_COLUMNS][column] = "·"
    for measured, predicted in points:
        column = round((measured - low) / span * (PLOT_COLUMNS - 1))
        row = round((predicted - low) / span * (PLOT_ROWS - 1))
        grid[PLOT_ROWS - 1 - row][column] = "●"
    body = "\n".join("  │" + "".join(row).rstrip() for row in grid)
    axis = f"  └{'─' * PLOT_COLUMNS}\n   {low:<10.3g}{provenance + ' ms':^{PLOT_COLUMNS - 20}}{high:>10.3g}"
    return f"  predicted ms\n{body}\n{axis}"


def difference_text(result: TableDifference) -> RenderableType:
    """Returns where two tables differ."""
    facts = [
        f"{result.common:,} blocks in both, {result.only_first:,} only in the first, "
        f"{result.only_second:,} only in the second"
    ]
    facts += [f"unlike: {one}" for one in result.unlike]
    if result.median_ratio is not None:
        facts.append(f"the second takes {result.median_ratio:.3f} times as long (median)")
    if result.rank_correlation is not None:
        facts.append(f"rank correlation {result.rank_correlation:.3f}")
    head = Group(title(result.first, f"and {result.second}"), *lines(facts))
    if not result.largest:
        return head
    rows = table("block", "first ms", "second ms", "ratio", right_from=1)
    for one in result.largest:
        add_row(rows, one.key, f"{one.first_ms:.4f}", f"{one.second_ms:.4f}", f"{one.ratio:.3f}")
    return Group(head, Text("\nfarthest from that ratio:"), rows)


def duration(seconds: float) -> str:
    """Returns `95` as `1 min 35 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60) if seconds >= 600 else int(seconds // 60)
    return f"{minutes} min" if seconds >= 600 else f"{minutes} min {seconds % 60:.0f} s"
