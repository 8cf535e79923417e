"""Sections about the way to the result: the front, rounds of the loop, repair, files, how to do it again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePath

from edgecompress.core.report_results import CellView, RecoveryStep, RunReport
from edgecompress.core.search_results import Round
from edgecompress.core.toml_text import toml_table
from edgecompress.report.benches import ms
from edgecompress.report.charts import LEAST_AGREEMENT, cost_text, drawn_points, front_chart
from edgecompress.report.doubts import round_doubts
from edgecompress.report.html_parts import (
    Section,
    doubt_badge,
    figure,
    folded,
    minutes_text,
    pairs,
    table,
    warned,
)
from edgecompress.report.markup import Markup, el, join
from edgecompress.report.numbers import megabytes, share

NAMES_SHOWN = 6


def front_section(run: RunReport) -> Section | None:
    """Returns the trade-off: plans no other beats by prediction, and the one that was chosen."""
    chart = figure(partial(front_chart, run))
    if chart is None:
        return None
    told = (
        "The line: plans no other beats by prediction, as they are before any repair. The diamond: the "
        "chosen network after repair, by its top-1 accuracy over that of the dense one."
    )
    hidden = len(run.front) - len(drawn_points(run))
    if hidden:
        told += (
            f" {hidden} plans that keep under {LEAST_AGREEMENT:.0f} % of the answers are in the table only."
        )
    rows = (
        (
            cost_text(run, one.cost),
            f"{100 * one.share:.0f} %",
            "" if one.agreement is None else f"{100 * one.agreement:.1f} %",
            "" if one.divergence is None else f"{one.divergence:.4f}",
            str(len(one.choices)),
        )
        for one in run.front
    )
    headers = ("Cost", "Of dense", "Same answers", "Divergence", "Layers changed")
    listed = folded("All plans of the front", table(headers, rows, label="The front"))
    return Section("front", "Accuracy against cost", join([el("p", told), chart, listed]))


def rounds_section(run: RunReport) -> Section | None:
    """Returns what the table predicted and the device said, round by round."""
    if not run.rounds:
        return None
    worst = max(abs(one.error) for one in run.rounds)
    told = (
        "Search, measure, correct: each round puts its plan on the device and compares it with what the "
        f"table promised. The prediction was off by {100 * worst:.1f} % at most."
    )
    headers = ("", "What", "Searched for, ms", "Predicted, ms", "On the device, ms", "Off by", "Target")
    listed = table(headers, map(_round_row, run.rounds), label="Rounds of the loop", left=2, stacked=True)
    doubts = warned(round_doubts(run.rounds))
    return Section("rounds", "Predicted against measured", join([el("p", told), listed, doubts]))


def _round_row(one: Round) -> tuple[str, ...]:
    what = "plan, spliced into the dense file" if one.file == "spliced" else "the finished network"
    met = el("span", "met" if one.met else "too slow", class_="good" if one.met else "bad")
    measured = join([ms(one.measured_ms), " ", doubt_badge()]) if one.doubts else ms(one.measured_ms)
    figures = (ms(one.limit_ms), ms(one.predicted_ms), measured)
    return f"Round {one.number}", what, *figures, f"{100 * one.error:+.1f} %", met


def recovery_section(run: RunReport) -> Section | None:
    """Returns the stages that won accuracy back, with what they brought and how long they took."""
    if not run.recovery:
        return None
    items = join(map(_rung, run.recovery))
    total = run.seconds.get("all") or sum(run.seconds.values())
    spent = ", ".join(
        f"{stage} {spent:.1f}" for stage, spent in run.seconds.items() if stage != "all" and spent >= 0.05
    )
    told = f"{minutes_text(total / 60)} in all; seconds by stage: {spent}." if spent else ""
    body = [el("p", told), el("ol", items, class_="ladder")]
    return Section("recovery", "How accuracy was kept", join(body))


def _rung(one: RecoveryStep) -> Markup:
    facts = [] if one.gain is None else [f"{one.gain:+.2f} pp"]
    facts += [] if one.minutes is None else [minutes_text(one.minutes)]
    facts += ["not kept"] if one.kept is False else []
    outcome = el("p", one.outcome.replace(" -> ", " → ")) if one.outcome else Markup("")
    return el("li", el("b", one.level), el("span", ", ".join(facts), class_="muted"), outcome)


def cells_section(run: RunReport) -> Section | None:
    """Returns the cells of a topology search, with how sure it was of each operation."""
    if not run.cells:
        return None
    told = "What each node of a cell adds up; below, the probability of every operation on every edge."
    parts = [el("p", told), *(part for cell in run.cells for part in _cell(cell, run.operations))]
    return Section("cells", "The cells that were found", join(parts))


def _cell(cell: CellView, operations: tuple[str, ...]) -> Iterator[Markup]:
    yield el("h4", f"{cell.kind} cell")
    rows = ((f"node {number + 1}", words) for number, words in enumerate(cell.nodes))
    yield table(("Node", "Adds up"), rows, label=f"Nodes of the {cell.kind} cell", left=2)
    edges = (
        (f"edge {number + 1}", *(_probability(value, max(edge)) for value in edge))
        for number, edge in enumerate(cell.probabilities)
    )
    listed = table(("Edge", *operations), edges, label=f"Probabilities of the {cell.kind} cell")
    yield folded("Probabilities by edge", listed)


def _probability(value: float, highest: float) -> Markup:
    return el("strong" if value == highest else "span", f"{100 * value:.1f} %")


def files_section(run: RunReport) -> Section | None:
    """Returns the exported files and how close to PyTorch they are."""
    if not run.files:
        return None
    rows = (
        (
            one.file,
            f"{one.precision}, {one.converter}",
            megabytes(one.size_bytes),
            share(one.parity.top1_agreement, 1),
            f"{one.parity.max_rel_diff:.1e}",
            str(sum(one.graph.operators.values())),
            str(one.graph.transposes),
        )
        for one in run.files
    )
    headers = ("File", "Made by", "Size", "Same top-1", "Off by", "Operators", "Transposes")
    told = (
        f"Each file was run on {run.files[0].parity.images} images and compared with PyTorch; off by: the "
        "largest difference over the largest output."
    )
    listed = table(headers, rows, label="Exported files", left=2, stacked=True)
    return Section("files", "Exported files", join([el("p", told), listed]))


def left_section(run: RunReport) -> Section | None:
    """Returns what had to stay as it was, and why."""
    if not run.left_alone and not run.notes:
        return None
    entries = [*_by_reason(run.left_alone), *(("note", note) for note in run.notes)]
    return Section("left", "Left alone, and remarks", pairs(entries))


def _by_reason(left: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in left:
        names[reason].append(name or "the model")
    for reason, own in names.items():
        more = f" and {len(own) - NAMES_SHOWN} more" if len(own) > NAMES_SHOWN else ""
        yield ", ".join(own[:NAMES_SHOWN]) + more, reason


def again_section(run: RunReport) -> Section:
    """Returns where it was made, with what, and the commands that do it again."""
    split = run.split
    facts = [("Run", run.path), ("Made", f"{run.created:%Y-%m-%d %H:%M} UTC, seed {run.seed}")]
    if split is not None:
        parts = f"{split.calibration:,} calibration, {split.selection:,} selection, {split.report:,} report"
        facts.append(("Images", f"{parts}; none is in two of them; from {split.source}"))
    facts += [*run.conditions.items()]
    facts.append(("Versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())))
    facts += [(f"SHA-256 of {PurePath(name).name or name}", digest) for name, digest in run.inputs.items()]
    settings = toml_table(run.command, run.options)
    told = (
        "Without the run: save these settings as run.toml, then "
        f"edgecompress {run.command} --config run.toml."
    )
    body = [
        el("p", "These commands do it again:"),
        el("pre", el("code", "\n".join(run.commands)), tabindex="0", aria_label="Commands"),
        folded("All settings", join([el("p", told), el("pre", el("code", settings), tabindex="0")])),
        pairs(facts),
    ]
    return Section("again", "Environment, and how to do it again", join(body))
