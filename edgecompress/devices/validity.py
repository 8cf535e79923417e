"""Whether a measurement can be believed. A busy or hot device does not stop it, but the result says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgecompress.core.measurement import Burst, Environment, Validity
from edgecompress.core.presets import Preset
from edgecompress.core.statistics import drift, outliers, scatter, spread

MAX_DRIFT = 0.05
"""From the first third of the bursts to the last; more is throttling, or another load."""

MAX_CLOCK_FALL = 0.05

MAX_INTERFERENCE = 0.2
"""Share of the time other programs may have on our core; medians hold beyond, absolute figures do not."""

MAX_SPREAD = 0.1
"""Between bursts; with 30 of them the median is then known to about 5 %."""


def judge(
    bursts: Sequence[Burst],
    preset: Preset,
    before: Environment,
    after: Environment,
    remarks: Sequence[str] = (),
) -> Validity:
    """Returns whether the bursts of one file are fit to be quoted; `remarks` are passed on.

    Exact bursts are: nothing disturbs a computation.
    """
    if all(burst.exact for burst in bursts):
        return Validity(valid=True, reasons=tuple(remarks))
    wrong = (*_too_few(bursts, preset), *_unsteady(bursts), *_device_changed(before, after))
    return Validity(valid=not wrong, reasons=(*wrong, *_worth_knowing(bursts), *remarks))


def doubts_of_ratios(ratios: Sequence[float], bursts: Sequence[Burst]) -> tuple[str, ...]:
    """Returns why a time by its ratios to a reference is not fit to be quoted; empty where it is.

    What slows the reference as well cancels, as throttling does. Scatter and other programs do not.
    """
    if all(burst.exact for burst in bursts):
        return ()
    return (*_scattered(scatter(ratios)), *_disturbed(bursts))


def _too_few(bursts: Sequence[Burst], preset: Preset) -> Iterator[str]:
    runs = sum(burst.runs for burst in bursts)
    seconds = sum(burst.runs * burst.mean_ms for burst in bursts) / 1e3
    if runs < preset.min_runs:
        yield f"{runs} runs of at least {preset.min_runs}"
    if seconds < 0.999 * preset.min_seconds:  # runtimes round their means
        yield f"{seconds:.1f} s of at least {preset.min_seconds:g} s"


def _unsteady(bursts: Sequence[Burst]) -> Iterator[str]:
    change = drift(bursts)
    if abs(change.change) > MAX_DRIFT and change.real:
        limit = _percent(MAX_DRIFT)
        yield f"latency changed by {_percent(change.change, '+')} while measuring (at most {limit})"
    yield from _scattered(spread(bursts))
    yield from _disturbed(bursts)


def _scattered(share: float) -> Iterator[str]:
    if share > MAX_SPREAD:
        yield f"bursts scatter by {_percent(share)} (at most {_percent(MAX_SPREAD)})"


def _disturbed(bursts: Sequence[Burst]) -> Iterator[str]:
    shares = [burst.interference for burst in bursts if burst.interference is not None]
    if shares and (mean := sum(shares) / len(shares)) > MAX_INTERFERENCE:
        limit = _percent(MAX_INTERFERENCE)
        yield f"other programs had the core {_percent(mean)} of the time (at most {limit})"


def _device_changed(before: Environment, after: Environment) -> Iterator[str]:
    cool, warm = before.thermal_status, after.thermal_status
    if cool is not None and warm is not None and warm > cool:
        yield f"thermal status rose from {cool} to {warm}"
    fast, slow = before.clock_mhz, after.clock_mhz
    if fast is not None and slow is not None and slow < (1 - MAX_CLOCK_FALL) * fast:
        yield f"the clock fell from {fast:.0f} to {slow:.0f} MHz"


def _worth_knowing(bursts: Sequence[Burst]) -> Iterator[str]:
    if far := outliers(bursts):
        yield f"{len(far)} of {len(bursts)} bursts lie far from the others"


def _percent(share: float, sign: str = "") -> str:
    return f"{share:{sign}.1%}".replace(".0%", "%").replace("%", " %")
