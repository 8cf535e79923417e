"""Latency tables and how well they predict, as text and as a page."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from test_latency_keys import CONDITIONS

from edgecompress.core.latency_results import CheckResult, NetworkCheck, TableDifference
from edgecompress.core.latency_table import PlanTiming
from edgecompress.report.latency import check_text, difference_text, scatter
from edgecompress.report.latency_plot import check_page


def timing(number: int, measured_ms: float, predicted_ms: float) -> PlanTiming:
    return PlanTiming(
        plan=f"random {number}",
        blocks_ms=1.0,
        weight_megabytes=1.0,
        measured_ms=measured_ms,
        predicted_ms=predicted_ms,
        fitted=False,
    )


def network(name: str) -> NetworkCheck:
    timings = (timing(0, 1.0, 1.1), timing(1, 2.0, 2.0), timing(2, 3.0, 2.7))
    return NetworkCheck(
        network=name, mean_error=0.0667, worst_error=0.1, rank_correlation=1.0, timings=timings
    )


def checked(*names: str) -> CheckResult:
    return CheckResult(
        table="t.json",
        device="made-up",
        provenance="measured",
        conditions=CONDITIONS,
        networks=tuple(network(name) for name in names),
    )


def plain(text) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100).print(text)
    return stream.getvalue()


def test_a_check_tells_every_plan_and_how_far_off_they_are():
    text = plain(check_text(checked("zoo:a")))
    for part in (
        "random 2",
        "2.700",
        "-10.0 %",
        "off by 6.7 % on average, 10.0 % at worst",
        "correlation 1.000",
    ):
        assert part in text


def test_points_of_a_plot_lie_where_their_figures_are():
    rows = [
        line.split("│", 1)[1]
        for line in scatter(network("a").timings, "measured").splitlines()
        if "│" in line
    ]
    places = sorted((row.index("●"), number) for number, row in enumerate(rows) if "●" in row)
    assert len(places) == 3
    assert [number for _, number in places] == sorted((number for _, number in places), reverse=True)


@pytest.mark.parametrize("names", [("zoo:a",), ("zoo:a", "zoo:b", "zoo:c")])
def test_a_page_has_a_panel_per_network(names):
    page = check_page(checked(*names))
    assert "<title>t.json, measured" in page
    assert page.count("off by 6.7 % on average") == len(names)
    assert page.count("random 2, -10.0 %") == len(names)


def test_names_cannot_break_a_page():
    page = check_page(checked("a<script>b.py:net"))
    assert "a<script>b" not in page


def test_tables_without_common_blocks_are_compared_without_a_list():
    nothing = TableDifference(
        first="a.json",
        second="b.json",
        unlike=("threads: 1 and 4",),
        common=0,
        only_first=12_000,
        only_second=3,
        median_ratio=None,
        rank_correlation=None,
        largest=(),
    )
    text = plain(difference_text(nothing))
    assert "0 blocks in both, 12,000 only in the first, 3 only in the second" in text
    assert "threads: 1 and 4" in text and "ratio" not in text
