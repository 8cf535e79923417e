"""Predicted against measured milliseconds as a page one can look at without a network."""

from __future__ import annotations

from edgecompress.core.latency_results import CheckResult
from edgecompress.report.latency import conditions_line


def check_page(result: CheckResult) -> str:
    """Returns an HTML page with one point per plan; hovering names it.

    Raises:
        MissingPackage: plotly is not installed.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for one in result.networks:
        measured = [each.measured_ms for each in one.timings]
        predicted = [each.predicted_ms for each in one.timings]
        name = f"{one.network}: {100 * one.mean_error:.1f} % off on average"
        texts = [f"{each.plan}, {100 * each.error:+.1f} %" for each in one.timings]
        figure.add_scatter(x=measured, y=predicted, mode="markers", name=name, text=texts)
    every = [each for one in result.networks for each in one.timings]
    ends = [min(each.measured_ms for each in every), max(each.measured_ms for each in every)]
    figure.add_scatter(x=ends, y=ends, mode="lines", name="agreement", line={"dash": "dot", "color": "gray"})
    figure.update_layout(
        title=f"{result.table} on {result.device} ({result.provenance})",
        xaxis_title=f"{result.provenance} ms",
        yaxis_title="predicted ms",
        template="plotly_white",
        annotations=[
            {
                "text": conditions_line(result.conditions, "", "").rstrip(", "),
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": 1.06,
                "showarrow": False,
            }
        ],
    )
    page: str = figure.to_html(include_plotlyjs=True, full_html=True)
    return page
