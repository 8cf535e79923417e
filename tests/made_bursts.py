"""Bursts with chosen latencies, for tests of what is computed from them."""

import numpy as np

from edgecompress.core.measurement import Burst


def burst(samples_ms, *, started_s=0.0, interference=None):
    """Returns a burst with these runs."""
    return Burst(
        started_s=started_s,
        runs=len(samples_ms),
        samples_ms=tuple(float(sample) for sample in samples_ms),
        median_ms=float(np.median(samples_ms)),
        mean_ms=float(np.mean(samples_ms)),
        std_ms=float(np.std(samples_ms)),
        min_ms=float(np.min(samples_ms)),
        max_ms=float(np.max(samples_ms)),
        interference=interference,
    )


def bursts(centers_ms):
    """Returns bursts of three equal runs each."""
    return [_steady(float(center)) for center in centers_ms]


def _steady(ms):
    return Burst(
        started_s=0, runs=3, samples_ms=(ms,) * 3, median_ms=ms, mean_ms=ms, std_ms=0, min_ms=ms, max_ms=ms
    )


def without_samples(one):
    """Returns what a runtime that reports only a summary would say of the same runs."""
    return one.model_copy(update={"samples_ms": ()})
