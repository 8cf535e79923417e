"""A report as one HTML page that needs nothing else: no file, no network, no library."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.resources import files

from edgecompress import __version__
from edgecompress.core.report_results import ReportResult, RunReport
from edgecompress.report.benches import ms
from edgecompress.report.charts import compare_chart, goal_time
from edgecompress.report.html_card import badges, lead, tiles, times_section
from edgecompress.report.html_curves import sizes_section, training_section
from edgecompress.report.html_layers import (
    groups_section,
    slower_section,
    spectra_section,
    strip_section,
    time_section,
)
from edgecompress.report.html_parts import Section, figure, table
from edgecompress.report.html_story import (
    again_section,
    cells_section,
    files_section,
    front_section,
    left_section,
    recovery_section,
    rounds_section,
)
from edgecompress.report.hues import classes, variables
from edgecompress.report.markup import Markup, el, join, text
from edgecompress.report.numbers import change, count, megabytes

SECTIONS: tuple[Callable[[RunReport], Section | None], ...] = (
    times_section,
    sizes_section,
    front_section,
    training_section,
    strip_section,
    time_section,
    groups_section,
    cells_section,
    slower_section,
    spectra_section,
    rounds_section,
    recovery_section,
    files_section,
    left_section,
    again_section,
)
"""In the order of the page; one that has nothing to show is left out."""


def report_page(result: ReportResult) -> str:
    """Returns the page of one run, or of several side by side."""
    only = result.runs[0] if len(result.runs) == 1 else None
    title = only.model if only else f"{len(result.runs)} runs side by side"
    content = _one(only) if only else _several(result.runs)
    body = el(
        "body",
        el("a", "Skip to the figures", href="#main", class_="skip"),
        content,
        el(
            "footer", el("p", f"edgecompress {__version__}. This page needs no network and asks for nothing.")
        ),
        el("div", id="tip", role="status", hidden=True),
        Markup(f"<script>{_script()}</script>"),
    )
    return f"<!doctype html>\n{el('html', _head(f'{title} - edgecompress report'), body, lang='en')}\n"


def _head(title: str) -> Markup:
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_policy()),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("link", rel="icon", href="data:,"),
        Markup(f"<style>{_style()}</style>"),
    )


@cache
def _style() -> str:
    sheet = files("edgecompress.report").joinpath("page.css").read_text(encoding="utf-8")
    return variables() + sheet + classes()


@cache
def _script() -> str:
    return files("edgecompress.report").joinpath("page.js").read_text(encoding="utf-8")


def _policy() -> str:
    """Lets this very style and script work and nothing else: not even a request for a picture."""
    rules = (
        "default-src 'none'",
        f"style-src '{_digest(_style())}'",
        f"script-src '{_digest(_script())}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(rules)


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _sections(run: RunReport) -> list[Section]:
    return [section for make in SECTIONS if (section := make(run)) is not None]


def _one(run: RunReport) -> Markup:
    sections = _sections(run)
    top = el(
        "header",
        el("p", _kicker(run), class_="kicker"),
        el("h1", run.model),
        lead(run),
        tiles(run),
        _contents((section.key, section.title) for section in sections),
    )
    return join([top, el("main", join(_shown(one, "h2") for one in sections), id="main")])


def _kicker(run: RunReport) -> Markup:
    return join([f"edgecompress {run.how or run.command} · {run.name} · {run.created:%Y-%m-%d}"])


def _contents(entries: Iterator[tuple[str, str]]) -> Markup:
    items = (el("li", el("a", title, href=f"#{key}")) for key, title in entries)
    return el("nav", el("ul", join(items)), aria_label="Contents")


def _shown(section: Section, heading: str, prefix: str = "") -> Markup:
    key = prefix + section.key
    return el(
        "section",
        el(heading, section.title, id=f"{key}-title"),
        section.body,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def _several(runs: Sequence[RunReport]) -> Markup:
    models = ", ".join(dict.fromkeys(run.model for run in runs))
    top = el(
        "header",
        el("p", "edgecompress report", class_="kicker"),
        el("h1", f"{len(runs)} runs side by side"),
        el("p", models, class_="lead"),
        _contents((f"r{number}", run.name) for number, run in enumerate(runs, 1)),
    )
    chart = figure(partial(compare_chart, runs)) or Markup("")
    compared = Section("compare", "Before and after", join([_side_by_side(runs), chart]))
    parts = (_folded_run(number, run) for number, run in enumerate(runs, 1))
    return join([top, el("main", _shown(compared, "h2"), join(parts), id="main")])


def _side_by_side(runs: Sequence[RunReport]) -> Markup:
    """Returns a column per run."""
    headers = ("", *(f"{number}  {run.name}" for number, run in enumerate(runs, 1)))
    rows = [
        ("Model", *(el("span", run.model, class_="fold") for run in runs)),
        ("By", *(el("span", run.how or run.command, class_="fold") for run in runs)),
        ("Top-1", *map(_top1, runs)),
        ("Milliseconds", *map(_milliseconds, runs)),
        ("Speed-up", *map(_speedup, runs)),
        ("Weights", *map(_weights, runs)),
        ("MACs", *map(_macs, runs)),
    ]
    listed = table(headers, (row for row in rows if any(row[1:])), label="Runs side by side")
    return el("div", listed, class_="compared")


def _with_sub(figure_: str, below: str) -> Markup:
    return join([text(figure_), el("span", below, class_="sub") if below else ""])


def _top1(run: RunReport) -> str:
    after = run.compressed.accuracy
    if after is None:
        return ""
    dense = run.dense.accuracy if run.dense else None
    return _with_sub(f"{after.top1:.2f} %", "" if dense is None else f"{after.top1 - dense.top1:+.2f} pp")


def _milliseconds(run: RunReport) -> str:
    time = goal_time(run)
    return "" if time is None else _with_sub(ms(time.after_ms), f"was {ms(time.before_ms)}")


def _speedup(run: RunReport) -> str:
    time = goal_time(run)
    if time is None:
        return ""
    known = join([badges(time), el("span", time.device, class_="sub fold")])
    return join([f"{time.speedup:.2f} x ", known])


def _weights(run: RunReport) -> str:
    size = run.compressed.weight_bytes
    return _with_sub(megabytes(size), change(run.dense.weight_bytes, size) if run.dense else "")


def _macs(run: RunReport) -> str:
    macs = run.compressed.macs
    return _with_sub(count(macs), change(run.dense.macs, macs) if run.dense else "")


def _folded_run(number: int, run: RunReport) -> Markup:
    sections = (_shown(one, "h3", f"r{number}-") for one in _sections(run))
    return el(
        "details",
        el("summary", el("h2", f"{number}  {run.name}")),
        el("p", _kicker(run), class_="kicker"),
        lead(run),
        tiles(run),
        join(sections),
        class_="run",
        id=f"r{number}",
        open=number == 1,
    )
