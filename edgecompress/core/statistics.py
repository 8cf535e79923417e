"""What bursts of runs come to: a summary per file, whether two files differ, and what is suspicious.

Runs of one burst are alike because they share the state of the machine, so the unit of every interval
is the burst and never the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from edgecompress.core.measurement import Burst, Comparison, Conditions, Interval, Summary
from edgecompress.errors import ConfigError

CONFIDENCE = 0.99
"""Of every interval: of a hundred comparisons of equal files about one may call them different."""

RESOLUTION = 0.01
"""Smallest difference worth a verdict. Copies of one file were seen half of it apart with no cause but
their place in memory and chance, and fewer would not make anyone change a network."""

TRIMMED = 0.2
"""Share of rounds left out at either end. Other programs make a few rounds several times as long; at
equal error rates the interval is then narrower than Wilcoxon's, by a sixth to a half, and far narrower
than that of the plain mean."""

_RESAMPLES = 1000
_SAMPLES_PER_BURST = 50
"""Enough of a burst's quantiles to resample it; a burst may have many thousand runs."""

_NORMAL = 1.4826
"""Makes the median absolute deviation of normal numbers their standard deviation."""

Array = NDArray[np.float64]
Verdict = Literal["faster", "slower", "no difference"]


def summarise(bursts: Sequence[Burst], *, seed: int = 0) -> Summary:
    """Returns what the bursts of one file come to.

    The interval of the median comes from resampling whole bursts with `seed`. Bursts without raw
    samples count with their centres.
    """
    runs = sum(burst.runs for burst in bursts)
    samples = _samples(bursts)
    values = _centers(bursts) if samples is None else samples
    mean = sum(burst.runs * burst.mean_ms for burst in bursts) / runs
    return Summary(
        runs=runs,
        bursts=len(bursts),
        median_ms=float(np.median(values)),
        interval_ms=_median_interval(bursts, seed),
        p90_ms=None if samples is None else float(np.quantile(samples, 0.9)),
        mean_ms=mean,
        std_ms=_std(bursts, samples, mean),
        min_ms=min(burst.min_ms for burst in bursts),
        max_ms=max(burst.max_ms for burst in bursts),
        statistic="median" if all(burst.median_ms is not None for burst in bursts) else "mean",
    )


def _samples(bursts: Sequence[Burst]) -> Array | None:
    if not all(burst.samples_ms for burst in bursts):
        return None
    return np.concatenate([np.asarray(burst.samples_ms) for burst in bursts])


def _centers(bursts: Sequence[Burst]) -> Array:
    return np.array([burst.center_ms for burst in bursts])


def _std(bursts: Sequence[Burst], samples: Array | None, mean: float) -> float | None:
    """Returns the standard deviation of all runs, without raw samples from the bursts' own."""
    if samples is not None:
        return float(samples.std())
    stds = [burst.std_ms for burst in bursts if burst.std_ms is not None]
    if len(stds) < len(bursts):
        return None
    squares = [one.runs * (std**2 + (one.mean_ms - mean) ** 2) for one, std in zip(bursts, stds, strict=True)]
    return math.sqrt(sum(squares) / sum(burst.runs for burst in bursts))


def _median_interval(bursts: Sequence[Burst], seed: int) -> Interval:
    count = len(bursts)
    values, owners, weights = _weighted(bursts)
    order = np.argsort(values)
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    below = np.cumsum(times[:, owners[order]] * weights[order], axis=1)
    medians = values[order][np.argmax(below >= below[:, -1:] / 2, axis=1)]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high), confidence=CONFIDENCE)


def _weighted(bursts: Sequence[Burst]) -> tuple[Array, NDArray[np.intp], Array]:
    """Returns some values of every burst, whose they are, and how many runs each stands for."""
    raw = all(burst.samples_ms for burst in bursts)
    chosen = [_thinned(burst.samples_ms) if raw else np.array([burst.center_ms]) for burst in bursts]
    owners = np.repeat(np.arange(len(bursts)), [len(values) for values in chosen])
    runs = np.array([burst.runs if raw else 1 for burst in bursts])
    per_value = runs / [len(values) for values in chosen]
    return np.concatenate(chosen), owners, per_value[owners]


def _thinned(samples: Sequence[float]) -> Array:
    if len(samples) <= _SAMPLES_PER_BURST:
        return np.asarray(samples)
    middles = (np.arange(_SAMPLES_PER_BURST) + 0.5) / _SAMPLES_PER_BURST
    return np.asarray(np.quantile(samples, middles))


def compare(
    baseline: Sequence[Burst], other: Sequence[Burst], *, names: tuple[str, str], paired: bool
) -> Comparison:
    """Returns how many times faster `other` is, with a verdict that asks for both significance and size.

    Paired: bursts of one index come from one round, so what slowed both cancels. The ratio is the
    trimmed mean of the logarithms of the ratios of burst centres; interval and p-value are Student's t
    with the winsorised variance (Tukey and McLaughlin 1963; unpaired: Yuen 1974). Exact bursts have one
    ratio, and an interval without width.

    Raises:
        ConfigError: there are fewer than three rounds, or paired bursts are not equally many.
    """
    exact = all(burst.exact for burst in (*baseline, *other))
    if not exact:
        _check_rounds(baseline, other, names, paired)
    shift = _exact_shift(baseline, other) if exact else _shift(baseline, other, paired)
    reach = float(special.stdtrit(shift.freedom, (1 + CONFIDENCE) / 2)) * shift.error
    low, speedup, high = (math.exp(shift.value + step) for step in (-reach, 0.0, reach))
    interval = Interval(low=low, high=high, confidence=CONFIDENCE)
    verdict = _verdict(speedup, interval)
    return Comparison(
        baseline=names[0],
        other=names[1],
        speedup=speedup,
        interval=interval,
        p_value=_p_value(shift),
        rounds=min(len(baseline), len(other)),
        paired=paired,
        verdict=verdict,
        statement=_statement(speedup, interval, verdict) if not exact else _exact_statement(speedup, verdict),
    )


def _check_rounds(
    baseline: Sequence[Burst], other: Sequence[Burst], names: tuple[str, str], paired: bool
) -> None:
    counts, who = (len(baseline), len(other)), f"{names[0]} and {names[1]}"
    if min(counts) < 3:
        raise ConfigError(f"{who}: {counts[0]} and {counts[1]} rounds; a comparison needs 3 or more of each")
    if paired and counts[0] != counts[1]:
        raise ConfigError(f"{who}: {counts[0]} and {counts[1]} rounds do not pair; measure them together")


@dataclass(frozen=True)
class _Estimate:
    value: float
    error: float
    """Standard error."""
    freedom: float
    """Degrees of freedom of Student's t."""


def _shift(baseline: Sequence[Burst], other: Sequence[Burst], paired: bool) -> _Estimate:
    first, second = np.log(_centers(baseline)), np.log(_centers(other))
    return _estimate(first - second) if paired else _difference(_estimate(first), _estimate(second))


def _exact_shift(baseline: Sequence[Burst], other: Sequence[Burst]) -> _Estimate:
    return _Estimate(math.log(baseline[0].center_ms) - math.log(other[0].center_ms), error=0.0, freedom=1.0)


def _estimate(values: Array) -> _Estimate:
    """Returns the trimmed mean, its error from the values with their extremes pulled in."""
    ordered, cut = np.sort(values), int(TRIMMED * len(values))
    kept = ordered[cut : len(ordered) - cut]
    pulled_in = ordered.clip(kept[0], kept[-1])
    squares = float(np.square(pulled_in - pulled_in.mean()).sum())
    degrees = len(kept) - 1
    return _Estimate(float(kept.mean()), math.sqrt(squares / (len(kept) * degrees)), degrees)


def _difference(first: _Estimate, second: _Estimate) -> _Estimate:
    parts = [(one.error**2, one.freedom) for one in (first, second)]
    variance = sum(part for part, _ in parts)
    doubt = sum(part**2 / degrees for part, degrees in parts)
    freedom = variance**2 / doubt if doubt > 0 else min(first.freedom, second.freedom)
    return _Estimate(first.value - second.value, math.sqrt(variance), freedom)


def _p_value(shift: _Estimate) -> float:
    if shift.error == 0.0:
        return float(shift.value == 0.0)
    return 2 * float(special.stdtr(shift.freedom, -abs(shift.value) / shift.error))


def _verdict(speedup: float, interval: Interval) -> Verdict:
    if interval.low > 1 and speedup >= 1 + RESOLUTION:
        return "faster"
    if interval.high < 1 and speedup <= 1 / (1 + RESOLUTION):
        return "slower"
    return "no difference"


def _statement(speedup: float, interval: Interval, verdict: Verdict) -> str:
    low, high, digits = interval.low, interval.high, 3 if interval.high < 1.02 * interval.low else 2
    if verdict == "no difference":
        return f"no difference seen ({low:.{digits}f}x to {high:.{digits}f}x)"
    if verdict == "slower":
        speedup, low, high = 1 / speedup, 1 / high, 1 / low
    return (
        f"{speedup:.{digits}f}x {verdict} ({interval.confidence:.0%} interval "
        f"{low:.{digits}f} to {high:.{digits}f})"
    ).replace("%", " %")


def _exact_statement(speedup: float, verdict: Verdict) -> str:
    if verdict == "no difference":
        return f"no difference worth naming ({speedup:.4f}x, exact)"
    return f"{1 / speedup if verdict == 'slower' else speedup:.3f}x {verdict} (exact)"


@dataclass(frozen=True)
class Drift:
    """How a file's latency changed while it was measured."""

    change: float
    """Of the last third of its bursts against the first, as a share; positive: slower."""
    p_value: float
    """How often bursts in random order show as much."""

    @property
    def real(self) -> bool:
        """Whether it is more than noise."""
        return self.p_value < 1 - CONFIDENCE


def drift(bursts: Sequence[Burst], *, seed: int = 0) -> Drift:
    """Returns how the latency changed from the first bursts to the last; 0 for fewer than three."""
    third = len(bursts) // 3
    if third == 0:
        return Drift(0.0, 1.0)
    logs = np.log(_centers(bursts))
    orders = np.random.default_rng(seed).permuted(np.tile(logs, (_RESAMPLES, 1)), axis=1)
    seen, chance = _thirds_apart(logs[None], third), _thirds_apart(orders, third)
    more = int((np.abs(chance) >= abs(seen[0]) - 1e-12).sum())
    return Drift(math.expm1(seen[0]), (more + 1) / (_RESAMPLES + 1))


def _thirds_apart(logs: Array, third: int) -> Array:
    return np.asarray(np.median(logs[:, -third:], axis=1) - np.median(logs[:, :third], axis=1))


def spread(bursts: Sequence[Burst]) -> float:
    """Returns by how much the centres of bursts scatter, as a share; a few wild ones do not count."""
    return scatter(_centers(bursts))


def scatter(values: ArrayLike) -> float:
    """Returns by how much positive values scatter around their median, as a share."""
    logs = np.log(values)
    return _NORMAL * float(np.median(np.abs(logs - np.median(logs))))


def outliers(bursts: Sequence[Burst]) -> tuple[int, ...]:
    """Returns which bursts lie far from the others: 3.5 times their spread, and no less than 3.5 %."""
    logs = np.log(_centers(bursts))
    far = np.abs(logs - np.median(logs)) > 3.5 * max(spread(bursts), RESOLUTION)
    return tuple(int(index) for index in np.flatnonzero(far))


def check_alike(first: Conditions, second: Conditions, *, any_runtime: bool = False) -> None:
    """Does nothing for conditions whose latencies may be compared; `any_runtime` to compare runtimes.

    Raises:
        ConfigError: something else differs; the message names the first such field.
    """
    passed_over = {"runtime", "runtime_version"} if any_runtime else set()
    for name in Conditions.model_fields:
        one, two = getattr(first, name), getattr(second, name)
        if one != two and name not in passed_over:
            field = name.replace("_", " ")
            raise ConfigError(
                f"latencies cannot be compared: {field} is {one!r} for one and {two!r} for the other; "
                "measure both alike"
            )
