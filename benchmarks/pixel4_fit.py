"""From counts to milliseconds: fits with few features and no negative one, judged on families left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import spearmanr

from edgecompress.core.counts import Counts, features

Array = NDArray[np.float64]

GIGAFLOPS = "gigaflops"
HUBER = 0.05
"""Relative errors beyond this count by their size, no longer by its square."""
ROUNDS = 20
NEAR = 0.10
FAMILIES = (
    ("mobilenet", r"(fd)?mobilenetb?_"),
    ("resnet", r"(se)?(pre)?resnet(bc)?\d"),
    ("squeezenet", r"squeeze(res)?net"),
    ("regnet", r"regnet"),
)
"""Names that do not say by themselves who is related: these share their blocks, or differ in width only."""


@dataclass(frozen=True)
class Sample:
    """A network that was counted here and timed on the phone."""

    name: str
    counts: Counts
    gigaflops: float
    measured_ms: float

    @property
    def family(self) -> str:
        """Which networks must be left out together with it."""
        for name, pattern in FAMILIES:
            if re.match(pattern, self.name):
                return name
        named = re.match(r"[a-z]+?(v\d|(?=[\d_])|$)", self.name)
        assert named is not None
        return named[0]


def known_of(sample: Sample) -> dict[str, float]:
    """Returns what a fit may use."""
    return features(sample.counts) | {GIGAFLOPS: sample.gigaflops}


def table(samples: Sequence[Sample], names: Sequence[str]) -> Array:
    """Returns the features of samples, one row each."""
    return np.array([[known_of(one)[name] for name in names] for one in samples])


def fit(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, float]:
    """Returns microseconds per feature, none negative, that make the relative errors small.

    Squares of errors up to `HUBER`, beyond it multiples of their size, by reweighting.
    """
    measured = np.array([one.measured_ms for one in samples])
    rows = table(samples, names) / measured[:, None]
    scale = np.maximum(rows.max(axis=0), 1e-12)
    weights, found = np.ones(len(rows)), np.zeros(len(names))
    for _ in range(ROUNDS):
        found, _ = nnls(rows / scale * weights[:, None], weights)
        errors = np.abs(rows / scale @ found - 1)
        weights = np.sqrt(HUBER / np.maximum(errors, HUBER))
    return {name: float(1e3 * each) for name, each in zip(names, found / scale, strict=True)}


def predicted_ms(sample: Sample, coefficients_us: Mapping[str, float]) -> float:
    """Returns the milliseconds by a fit."""
    known = known_of(sample)
    return sum(each * known[name] for name, each in coefficients_us.items()) / 1e3


def left_out_ms(samples: Sequence[Sample], names: Sequence[str]) -> Array:
    """Returns for every sample the milliseconds by a fit on the other families."""
    found = np.zeros(len(samples))
    for family in {one.family for one in samples}:
        coefficients_us = fit([one for one in samples if one.family != family], names)
        for place, one in enumerate(samples):
            if one.family == family:
                found[place] = predicted_ms(one, coefficients_us)
    return found


def judge(samples: Sequence[Sample], found_ms: Array) -> dict[str, float]:
    """Returns how far predictions are off, as shares, and how well they rank."""
    measured = np.array([one.measured_ms for one in samples])
    errors = np.abs(found_ms / measured - 1)
    return {
        "mean_error": float(errors.mean()),
        "median_error": float(np.median(errors)),
        "worst_error": float(errors.max()),
        "within_10_percent": float((errors <= NEAR).mean()),
        "rank_correlation": float(spearmanr(found_ms, measured)[0]),
    }
