"""The top of a page: before and after in a sentence, in four figures, and in milliseconds by device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from edgecompress.core.measurement import Interval
from edgecompress.core.report_results import RunReport, TimePair
from edgecompress.report.benches import ms
from edgecompress.report.doubts import doubt_lines
from edgecompress.report.figures import unrecovered_words
from edgecompress.report.html_parts import Section, doubt_badge, share_bar, table, warned
from edgecompress.report.markup import Markup, el, join
from edgecompress.report.numbers import change, count


def lead(run: RunReport) -> Markup:
    """Returns the outcome in one sentence."""
    speeds = [_speed_words(time) for time in headline_times(run)]
    words = [part for part in (*speeds, _accuracy_words(run, first=not speeds), _size_words(run)) if part]
    warnings = [] if run.met is not False else [f"Target not met: {run.reason or 'no reason given'}"]
    sentence = el("p", join(_listed(words)), ".", class_="lead")
    bad = (el("p", line, class_="bad") for line in warnings)
    return join([sentence, *bad, warned(doubt_lines(headline_times(run)))])


def _listed(words: list[Markup]) -> Iterator[str]:
    for number, part in enumerate(words):
        yield "" if number == 0 else " and " if number == len(words) - 1 else ", "
        yield part


def _speed_words(time: TimePair) -> Markup:
    shown = (
        f"{time.speedup:.2f} times as fast" if time.speedup >= 1 else f"{1 / time.speedup:.2f} times as slow"
    )
    how = ", ".join(filter(None, (time.known_words, time.file)))
    return join([el("strong", shown), f" as before on {time.device.split(',')[0]} ({how})"])


def _accuracy_words(run: RunReport, *, first: bool) -> Markup | None:
    after = run.compressed.accuracy
    if after is None:
        return None
    if run.dense is None or run.dense.accuracy is None:
        return join([el("strong", f"{after.top1:.2f} %"), " of images told right"])
    gained = after.top1 - run.dense.accuracy.top1
    if abs(gained) < 0.005:
        return el("strong", "The same accuracy" if first else "the same accuracy")
    word = "lost" if gained < 0 else "gained"
    return join([el("strong", f"{abs(gained):.2f} points"), f" of accuracy {word}"])


def _size_words(run: RunReport) -> Markup | None:
    if run.dense is None:
        return join([el("strong", f"{count(run.compressed.params)}"), " parameters"])
    less = 1 - run.compressed.weight_bytes / run.dense.weight_bytes if run.dense.weight_bytes else 0.0
    if less == 0 and run.compressed.accuracy is not None:  # trained, not made smaller
        return None
    return join([el("strong", f"{100 * abs(less):.0f} % {'fewer' if less >= 0 else 'more'}"), " weights"])


def tiles(run: RunReport) -> Markup:
    """Returns milliseconds, accuracy, megabytes and MACs, each with what it was before."""
    return el("dl", join(_tiles(run)), class_="tiles")


def _tiles(run: RunReport) -> Iterator[Markup]:
    dense, after = run.dense, run.compressed
    for time in headline_times(run):
        yield _time_tile(time, run)
    if after.accuracy is not None:
        before = None if dense is None or dense.accuracy is None else dense.accuracy.top1
        gained = None if before is None else after.accuracy.top1 - before
        yield _tile(
            "Accuracy",
            _Figure(after.accuracy.top1, before, lambda value: f"{value:.2f} %"),
            None if gained is None else f"{gained:+.2f} pp",
            [f"top-1 on {after.accuracy.images:,} images", unrecovered_words(run)],
            good=gained is not None and gained > -1,
        )
    size, size_before = after.weight_bytes, None if dense is None else dense.weight_bytes
    yield _tile(
        "Weights",
        _Figure(size, size_before, _megabytes),
        None if size_before is None else change(size_before, size),
        [f"{count(after.params)} parameters" + ("" if dense is None else f", were {count(dense.params)}")],
        good=size_before is not None and size <= size_before,
    )
    yield _tile(
        "MACs",
        _Figure(after.macs, None if dense is None else dense.macs, count),
        None if dense is None else change(dense.macs, after.macs),
        ["multiply-adds per image"],
        good=dense is not None and after.macs <= dense.macs,
    )


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.{2 if size_bytes >= 1e5 else 3}f} MB"


def headline_times(run: RunReport) -> list[TimePair]:
    """Returns the times the search was about and, where those were not measured, the first that were."""
    goal = run.times[:1]
    if goal and goal[0].how_known == "measured":
        return list(goal)
    return [*goal, *[time for time in run.times[1:] if time.how_known == "measured"][:1]]


def _time_tile(time: TimePair, run: RunReport) -> Markup:
    goal = time.goal and run.metric == "ms" and run.target is not None
    lines = [
        join([badges(time), " ", time.device.split(",")[0]]),
        f"target {ms(run.target)} ms, {'met' if run.met else 'not met'}" if goal and run.target else "",
        "" if time.after_interval is None else f"{_between(time.after_interval)} ms",
        _sureness(time),
        el("span", time.file, class_="fold") if time.file else "",
    ]
    return _tile(
        "Latency",
        _Figure(time.after_ms, time.before_ms, lambda value: f"{ms(value)} ms"),
        change(time.before_ms, time.after_ms),
        lines,
        good=time.after_ms <= time.before_ms,
    )


@dataclass(frozen=True)
class _Figure:
    """A figure and what it was before, with the unit both have."""

    now: float
    was: float | None
    shown: Callable[[float], str]


def _tile(name: str, figure: _Figure, delta: str | None, lines: Iterable[str], *, good: bool) -> Markup:
    """Returns a figure with its unit, what it was, how much of that is left, and lines about it."""
    changed = el("span", delta, class_=f"delta {'good' if good else 'bad'}") if delta else Markup("")
    now, _, unit = figure.shown(figure.now).partition(" ")
    before = []
    if figure.was is not None:
        before = [el("div", f"was {figure.shown(figure.was)}"), share_bar(figure.now, figure.was)]
    return el(
        "div",
        el("dt", el("span", name), changed),
        el(
            "dd",
            el("div", now, " ", el("small", unit), class_="now"),
            el("div", join([*before, *(el("div", line) for line in lines if line)]), class_="was"),
        ),
        class_="tile",
    )


def badges(time: TimePair) -> Markup:
    """Returns how a time is known and whether it is valid, so that nobody takes it for more than it is."""
    known = el("span", time.how_known, class_=f"badge {time.how_known}")
    return join([known, " ", doubt_badge()]) if time.doubts else known


def _sureness(time: TimePair) -> str:
    """Returns the verdict with how far the speed-up may be off; all figures are in the table below."""
    if time.verdict is None:
        return ""
    bounds = time.speedup_interval
    return time.verdict if bounds is None else f"{time.verdict}: {bounds.low:.2f} to {bounds.high:.2f} x"


def _between(interval: Interval) -> str:
    return f"{ms(interval.low)} to {ms(interval.high)}"


def times_section(run: RunReport) -> Section | None:
    """Returns milliseconds before and after on every device, with what can be said of the difference."""
    if not run.times:
        return None
    rows = [_time_row(time) for time in run.times]
    sure = {f"{100 * one.confidence:.0f} %" for time in run.times if (one := time.speedup_interval)}
    told = f"Intervals are of {', '.join(sorted(sure))} confidence. " if sure else ""
    kinds = {time.how_known for time in run.times}
    told += "Measured: timed on the device, dense and compressed in turns. " if "measured" in kinds else ""
    if "emulated" in kinds:
        told += "Emulated: computed from the instructions the files execute; not a time of a real device. "
    told += "Predicted: summed from the latency table. " if "predicted" in kinds else ""
    headers = ("Device", "Known by", "Before, ms", "After, ms", "Speed-up", "Verdict")
    body = table(headers, rows, label="Milliseconds by device", left=2, stacked=True)
    doubts = warned(doubt_lines(run.times))
    return Section("times", "Milliseconds, by device", join([el("p", told.strip()), body, doubts]))


def _time_row(time: TimePair) -> tuple[str, ...]:
    verdict = time.verdict or ("not compared in turns" if time.how_known != "predicted" else "")
    tone = "muted" if time.doubts else {"faster": "good", "slower": "bad"}.get(time.verdict or "", "muted")
    return (
        join([time.device, el("span", time.what, class_="sub")]),
        badges(time),
        _with_bounds(ms(time.before_ms), time.before_interval),
        _with_bounds(ms(time.after_ms), time.after_interval),
        _with_bounds(f"{time.speedup:.2f} x", time.speedup_interval),
        el("span", verdict, class_=tone) if verdict else "",
    )


def _with_bounds(figure: str, interval: Interval | None) -> Markup:
    below = Markup("") if interval is None else el("span", _between(interval), class_="sub")
    return join([el("span", figure), below])
