"""Predicted against measured milliseconds as a page one can look at without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence

from edgecompress.core.latency_results import CheckResult, NetworkCheck
from edgecompress.core.latency_table import PlanTiming
from edgecompress.report.latency import agreement_line, conditions_line

PANEL_WIDTH, PANEL_HEIGHT, GAP = 560, 480, 130
"""Pixels; the gap between two rows of panels holds the axis of one and the title of the other."""
BAND = 0.05
"""Share to either side of agreement that is shaded."""
MARGIN = 0.03
"""Share of empty space beyond the outermost plans."""
POINTS, SHADE, LINE = "#3b6fd4", "rgba(128,128,128,0.15)", "gray"


def check_page(result: CheckResult) -> str:
    """Returns an HTML page with a panel per network and a point per plan; hovering names it."""
    from plotly.subplots import make_subplots  # takes a second to import

    columns = min(2, len(result.networks))
    rows = -(-len(result.networks) // columns)
    titles = [f"<b>{html.escape(one.network)}</b><br>{agreement_line(one)}" for one in result.networks]
    height = 160 + PANEL_HEIGHT * rows
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=titles, vertical_spacing=GAP / height)
    for number, one in enumerate(result.networks):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for trace in _traces(one):
            figure.add_trace(trace, **place)
        figure.update_xaxes(title=f"{result.provenance} ms", **place)
        figure.update_yaxes(title="predicted ms", **place)
    subject = html.escape(f"{result.table}, {result.provenance}, plans not used in the fit")
    told = html.escape(f"{conditions_line(result.conditions)}; shaded: within {100 * BAND:.0f} %")
    figure.update_layout(
        title=f"{subject}<br><sup>{told}</sup>",
        width=100 + PANEL_WIDTH * columns,
        height=height,
        margin={"t": 140},
        template="plotly_white",
        showlegend=False,
    )
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, config={"displaylogo": False})
    return page.replace("<head>", f"<head><title>{subject}</title>", 1)


def _traces(one: NetworkCheck) -> list[object]:
    """Returns the shade where predictions are nearly right, the line where they are, and the plans."""
    import plotly.graph_objects as go

    low, high = _ends(one.timings)
    shade = [low * (1 - BAND), high * (1 - BAND), high * (1 + BAND), low * (1 + BAND)]
    texts = [f"{each.plan}, {100 * each.error:+.1f} %" for each in one.timings]
    quiet = {"mode": "lines", "hoverinfo": "skip"}
    return [
        go.Scatter(
            x=[low, high, high, low], y=shade, fill="toself", fillcolor=SHADE, line={"width": 0}, **quiet
        ),
        go.Scatter(x=[low, high], y=[low, high], line={"dash": "dot", "color": LINE}, **quiet),
        go.Scatter(
            x=[each.measured_ms for each in one.timings],
            y=[each.predicted_ms for each in one.timings],
            mode="markers",
            marker={"color": POINTS, "size": 8},
            text=texts,
        ),
    ]


def _ends(timings: Sequence[PlanTiming]) -> tuple[float, float]:
    figures = [ms for each in timings for ms in (each.measured_ms, each.predicted_ms)]
    return min(figures) * (1 - MARGIN), max(figures) * (1 + MARGIN)
