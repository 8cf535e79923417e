"""Sections about layers: what each became, where the time went, what was refused, singular values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from edgecompress.core.prune_results import PrunedGroup
from edgecompress.core.report_results import LayerView, RunReport
from edgecompress.core.search_results import Slower
from edgecompress.report.benches import ms
from edgecompress.report.charts import slower_chart, spectrum_chart
from edgecompress.report.drawing import to_svg
from edgecompress.report.html_parts import Section, aligned, figure, folded, legend, swatched, table
from edgecompress.report.hues import hue_of
from edgecompress.report.markup import Markup, el, join
from edgecompress.report.numbers import change, count, share
from edgecompress.report.prunes import KINDS

SHOWN_SLOWER = 12


def strip_section(run: RunReport) -> Section | None:
    """Returns the network as a strip of blocks, coloured by what was chosen and filled by what is left."""
    if not run.layers:
        return None
    timed = bool(timed_layers(run))
    stages = [(stage, list(own)) for stage, own in groupby(run.layers, key=lambda one: _stage(one.name))]
    unit = "time" if timed else "MACs"
    told = (
        f"Every block is a layer, in forward order. The filled part is what is left of its {unit}; below it "
        "what it became, and its ranks, or its widths: inputs x outputs."
    )
    items = (
        el(
            "li",
            el("span", stage or "layers"),
            el("ol", join(_block(one, tabbed=one is run.layers[0]) for one in own), class_="blocks"),
            class_="stage",
        )
        for stage, own in stages
    )
    body = [
        el("p", told),
        legend(hue_of(one.family) for one in run.layers),
        el("ol", join(items), class_="stages", data_roving=True),
    ]
    return Section("network", "What became of every layer", join(body))


def _stage(name: str) -> str:
    """Returns the part of a network a layer belongs to: `layer1` of `layer1.0.conv2`, `blocks.3` of ViTs."""
    first, *others = name.split(".")
    if others and others[0].isdigit() and not first[-1:].isdigit() and len(others) > 1:
        return f"{first}.{others[0]}"
    return first if others else ""


def timed_layers(run: RunReport) -> list[LayerView]:
    """Returns the layers the latency table knows; all others are in its rest."""
    return [one for one in run.layers if one.before_ms is not None and one.after_ms is not None]


def _left(one: LayerView) -> float:
    """Returns what is left of a layer's cost, 0 to 1; above 1 it got more expensive."""
    if one.before_ms is not None and one.after_ms is not None and one.before_ms > 0:
        return one.after_ms / one.before_ms
    return one.macs_after / one.macs_before if one.macs_before else 1.0


def _sizes(one: LayerView) -> str:
    between = " x " if one.family == "narrower" else ", "
    return between.join(map(str, one.ranks))


def layer_words(one: LayerView) -> str:
    """Returns all that is known of a layer in one line."""
    what = one.family
    if one.ranks:
        what += f", {'widths' if one.family == 'narrower' else 'rank'} {_sizes(one)}"
    words = [f"{one.name}: {what}", f"MACs {count(one.macs_before)} to {count(one.macs_after)}"]
    if one.before_ms is not None and one.after_ms is not None:
        words.append(f"{ms(one.before_ms)} to {ms(one.after_ms)} ms")
    return "; ".join(words)


def _block(one: LayerView, *, tabbed: bool) -> Markup:
    filled = 100 * min(max(_left(one), 0.0), 1.0)
    hue = hue_of(one.family)
    words = layer_words(one)
    picture = el(
        "svg",
        el("rect", x="0", y="0", width="100%", height="100%", class_=f"fill-{hue}", opacity="0.16"),
        el(
            "rect",
            x="0",
            y=f"{100 - filled:.1f}%",
            width="100%",
            height=f"{filled:.1f}%",
            class_=f"fill-{hue}",
        ),
        aria_hidden="true",
    )
    below = el("i", _sizes(one)) if one.ranks else Markup("")
    return el(
        "li",
        picture,
        el("b", "widths" if one.family == "narrower" else one.family),
        below,
        class_="block",
        tabindex="0" if tabbed else "-1",
        aria_label=words,
        data_tip=words,
    )


def time_section(run: RunReport) -> Section | None:
    """Returns every layer before and after: milliseconds of the table, or MACs where there is none."""
    if not run.layers:
        return None
    timed = bool(timed_layers(run))
    layers = timed_layers(run) or list(run.layers)
    totals = _totals(run, layers, timed=timed)
    unit = "ms" if timed else "MACs"
    headers = ("Layer", "Became", f"{unit}, before and after", "Before", "After", "Change")
    most = max(max(_figures(one, timed=timed)) for one in layers) or 1.0
    rows = [_time_row(one, most, timed=timed) for one in layers]
    rest = _rest(run, timed=timed)
    if any(rest):
        shown = [aligned(one, most) if timed else count(one) for one in rest]
        rows.append(("everything else", "", "", *shown, _changed(*rest)))
    source = "by the latency table the search used" if timed else "from shapes"
    told = f"Grey is before, colour is after; {source}."
    body = [el("p", told), totals, table(headers, rows, label=f"{unit} by layer", left=3, drawn=2)]
    return Section("where", f"Where the {'milliseconds' if timed else 'MACs'} went", join(body))


def _figures(one: LayerView, *, timed: bool) -> tuple[float, float]:
    if timed and one.before_ms is not None and one.after_ms is not None:
        return one.before_ms, one.after_ms
    return float(one.macs_before), float(one.macs_after)


def _time_row(one: LayerView, most: float, *, timed: bool) -> tuple[str, ...]:
    before, after = _figures(one, timed=timed)
    hue = hue_of(one.family)
    bars = el(
        "svg",
        el(
            "rect", x="0", y="1", width=f"{100 * before / most:.2f}%", height="8", rx="2", class_="fill-faint"
        ),
        el(
            "rect",
            x="0",
            y="10",
            width=f"{100 * after / most:.2f}%",
            height="8",
            rx="2",
            class_=f"fill-{hue}",
        ),
        class_="bar",
        aria_hidden="true",
    )
    shown = (aligned(before, most), aligned(after, most)) if timed else (count(before), count(after))
    became = f"{one.family} {_sizes(one)}".strip()
    return one.name, swatched(hue, became), bars, *shown, _changed(before, after)


def _changed(before: float, after: float) -> str:
    return "" if math.isclose(before, after, rel_tol=5e-4) else change(before, after)


def _rest(run: RunReport, *, timed: bool) -> tuple[float, float]:
    """Returns what all other layers cost, before and after; a fitted rest may be below 0."""
    if timed:
        return max(run.rest_ms or 0.0, 0.0), max(run.rest_after_ms or 0.0, 0.0)
    if run.dense is None:
        return 0.0, 0.0
    before = run.dense.macs - sum(one.macs_before for one in run.layers)
    after = run.compressed.macs - sum(one.macs_after for one in run.layers)
    return max(float(before), 0.0), max(float(after), 0.0)


def _totals(run: RunReport, layers: Sequence[LayerView], *, timed: bool) -> Markup:
    """Returns the whole network as two bars, split by layer."""
    rests = _rest(run, timed=timed)
    whole = sum(_figures(one, timed=timed)[0] for one in layers) + rests[0] or 1.0
    parts = []
    for name, after in (("before", False), ("after", True)):
        at, pieces = 0.0, []
        for one in layers:
            wide = 100 * _figures(one, timed=timed)[after] / whole
            hue = hue_of(one.family) if after else "dense"
            pieces.append(_piece(at, wide, hue, layer_words(one)))
            at += wide
        pieces.append(_piece(at, 100 * rests[after] / whole, "faint", "everything else"))
        total = at / 100 * whole + rests[after]
        shown = f"{ms(total)} ms" if timed else f"{count(total)} MACs"
        parts.append(el("div", el("span", f"{name} {shown}", class_="small muted"), _bar_of(pieces)))
    return el("div", join(parts), class_="totals")


def _piece(at: float, wide: float, hue: str, words: str) -> Markup:
    return el(
        "rect",
        x=f"{at:.2f}%",
        y="0",
        width=f"{wide:.2f}%",
        height="100%",
        class_=f"fill-{hue} line-paper",
        stroke_width="1.5",
        data_tip=words,
    )


def _bar_of(pieces: Iterable[Markup]) -> Markup:
    return el("svg", join(pieces), class_="total", aria_hidden="true")


def slower_section(run: RunReport) -> Section | None:
    """Returns the blocks that save MACs and cost time, which is why they were left out."""
    chart = figure(lambda width, height: slower_chart(run.slower, width, height))
    if chart is None:
        return None
    blocks = sum(one.blocks for one in run.slower)
    told = (
        f"{blocks:,} blocks have fewer MACs than the layer they could replace, and by the latency table take "
        "as long or longer. The search refused them. A point is the smallest block of a family for a layer."
    )
    headers = ("Layer", "Family", "Rank", "MACs", "Time")
    worst = sorted(run.slower, key=lambda one: (one.cost_share < 1, one.macs_share))[:SHOWN_SLOWER]
    listed = table(headers, map(_slower_row, worst), label="Refused blocks", left=2)
    shown = folded(f"The {len(worst)} most tempting of them", listed)
    body = [el("p", told), legend(hue_of(one.family) for one in run.slower), chart, shown]
    return Section("refused", "Saves MACs, costs time: refused", join(body))


def _slower_row(one: Slower) -> tuple[str, ...]:
    macs, time = 100 * (one.macs_share - 1), 100 * (one.cost_share - 1)
    ranks = ", ".join(map(str, one.ranks))
    return one.layer, swatched(hue_of(one.family), one.family), ranks, f"{macs:+.0f} %", f"{time:+.0f} %"


def spectra_section(run: RunReport) -> Section | None:
    """Returns the singular values of layers that became low-rank, with the ranks that were kept."""
    if not run.spectra:
        return None
    told = (
        "Singular values of the dense weights, read as the chosen family reads them, largest first. Filled "
        "is what the kept rank holds; what is cut off matters less where inputs do not reach it."
    )
    items = (
        el(
            "li",
            el("b", one.layer),
            to_svg(spectrum_chart(one)),
            f"{one.family}, rank {one.rank} of {one.max_rank}; {100 * one.energy_kept:.1f} % of the energy",
        )
        for one in run.spectra
    )
    body = join([el("p", told), el("ul", join(items), class_="spectra")])
    return Section("spectra", "Singular values and kept ranks", body)


def groups_section(run: RunReport) -> Section | None:
    """Returns what stayed of every group of channels or dimensions."""
    if not run.groups:
        return None
    told = (
        "Units of a group exist together: channels of layers joined by a sum, hidden units, parts of heads."
    )
    headers = ("Group", "Units", "Kept", "Before", "After", "Stays")
    rows = [_group_row(one) for one in run.groups]
    listed = table(headers, rows, label="Units by group", left=3, drawn=2)
    return Section("groups", "What was taken away", join([el("p", told), listed]))


def _group_row(one: PrunedGroup) -> tuple[str, ...]:
    kept = 100 * one.after / one.before
    hue = "dense" if one.after == one.before else "narrower"
    bar = el(
        "svg",
        el("rect", x="0", y="5", width="100%", height="10", rx="2", class_="fill-faint"),
        el("rect", x="0", y="5", width=f"{kept:.1f}%", height="10", rx="2", class_=f"fill-{hue}"),
        class_="bar",
        aria_hidden="true",
    )
    return one.name, KINDS[one.kind], bar, str(one.before), str(one.after), share(one.after, one.before)
