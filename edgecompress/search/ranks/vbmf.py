"""Tucker-2 ranks from variational Bayes: how many directions of each unfolding stand out of the noise.

Empirical variational Bayesian matrix factorisation of an L x M matrix (L <= M, alpha = L / M) has a
closed form. With singular values s_h, noise variance v and x_h = s_h^2 / (M v), the directions with

    x_h > x_min = (1 + t_min) (1 + alpha / t_min)

survive, t_min the root of  log(1 + t) + alpha log(1 + t / alpha) = t. The noise variance minimises

    sum_h  x_h + log v + [x_h > x_min] psi(t(x_h)),
    psi(t) = log(1 + t) + alpha log(1 + t / alpha) - t,

t(x) being the larger root of x = (1 + t) (1 + alpha / t), between bounds that are known as well.

The rule leaves nothing to choose, so a budget is met by weakening it: ranks move from the ones found
towards full rank, or, below what it asks for, shrink in proportion (the latter is ours).

References: Nakajima et al., Global Analytic Solution of Fully-Observed Variational Bayesian Matrix
Factorization, JMLR 2013, and Condition for Perfect Dimensionality Recovery by Variational Bayesian
PCA, JMLR 2015; Kim et al., Compression of Deep CNNs for Fast and Low Power Mobile Applications, ICLR
2016 (VBMF for Tucker-2); Gusak et al., MUSCO, 2019 (weakening).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from edgecompress.core.types import Layer
from edgecompress.methods import tucker2
from edgecompress.nets.families import Family, matrix_shape
from edgecompress.search.contract import Choices, Options, Problem, Selection
from edgecompress.search.knob import meet_limit, worthwhile
from edgecompress.search.spectra import check_offered, singular_values

Floats = NDArray[np.float64]

GRID = 256
"""Noise variances tried at once, three times over, each time around the best one."""
KNOB_STEPS = 1000
MODES = (Family("S5"), Family("S4"))
"""S5(1) and S4(1) read a kernel as the unfoldings by input and by output channels."""


@dataclass(frozen=True)
class Ranks:
    """Ranks of the input and the output channels of one layer."""

    layer: Layer
    found: tuple[int, int]
    full: tuple[int, int]

    def at(self, knob: float) -> tuple[int, int]:
        """Returns the ranks at a knob: 0 means rank 1, 1 the ranks found, 2 full rank."""
        return self._mode(0, knob), self._mode(1, knob)

    def _mode(self, mode: int, knob: float) -> int:
        found, full = self.found[mode], self.full[mode]
        if knob <= 1:
            return max(1, math.floor(knob * found))
        return found + math.floor((knob - 1) * (full - found))


def select(problem: Problem) -> Choices:
    """Weakens the ranks of all layers alike until the budget is met.

    Raises:
        ConfigError: no Tucker-2 candidates are offered.
    """
    check_offered(problem, tucker2.METHOD.name)
    every = [found_ranks(o, problem) for o in problem.options if _is_offered(o)]

    def choose(knob: float) -> Choices:
        return worthwhile(problem, (tucker2.tucker_candidate(r.layer, *r.at(knob)) for r in every))

    return meet_limit(problem, choose, [step / KNOB_STEPS for step in range(2 * KNOB_STEPS + 1)])


def _is_offered(options: Options) -> bool:
    return any(candidate.method == tucker2.METHOD.name for candidate in options.candidates)


def found_ranks(options: Options, problem: Problem) -> Ranks:
    """Returns what the rule finds for a layer; 1 where nothing stands out."""
    layer = options.layer
    found, full = [], []
    for family in MODES:
        _, rows, columns = matrix_shape(family, layer.op)
        values = singular_values(family, problem.kernels[layer.name])[0].numpy()
        found.append(max(1, signal_rank(values, longer=max(rows, columns))))
        full.append(len(values))
    return Ranks(layer, (found[0], found[1]), (full[0], full[1]))


def signal_rank(values: Floats, *, longer: int) -> int:
    """Returns how many singular values stand out of the noise.

    `values` are all those of a matrix, largest first; `longer` is the length of its longer side.
    """
    if not values.any():
        return 0
    alpha = len(values) / longer
    variance = noise_variance(values, longer=longer)
    return int((values**2 > longer * variance * _x_min(alpha)).sum())


def noise_variance(values: Floats, *, longer: int) -> float:
    """Returns the noise variance that minimises the free energy of a matrix that is not zero."""
    low, high = _variance_bounds(values, longer)
    for _ in range(3):
        grid = np.geomspace(low, high, GRID)
        best = int(_free_energy(grid, values, longer).argmin())
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
    return float(grid[best])


def _variance_bounds(values: Floats, longer: int) -> tuple[float, float]:
    shorter, squares = len(values), values**2
    alpha = shorter / longer
    high = squares.mean() / longer
    most = math.ceil(shorter / (1 + alpha)) - 1  # more signal than this is never found
    low = max(squares[most] / _x_min(alpha), squares[most:].mean()) / longer
    return max(low, high * np.finfo(np.float64).eps), high  # a matrix of low rank may have no noise at all


def _free_energy(variances: Floats, values: Floats, longer: int) -> Floats:
    """Returns the free energy of each variance, up to a constant."""
    alpha = len(values) / longer
    x = values[:, None] ** 2 / (longer * variances)  # (L, variances)
    excess = np.maximum(x, _x_min(alpha)) - (1 + alpha)
    gain = _psi((excess + np.sqrt(excess**2 - 4 * alpha)) / 2, alpha)  # 0 at x_min, hence below it as well
    energy: Floats = (x + np.log(variances) + gain).sum(0)
    return energy


def _psi(t: Floats, alpha: float) -> Floats:
    result: Floats = np.log1p(t) + alpha * np.log1p(t / alpha) - t
    return result


@functools.cache
def _x_min(alpha: float) -> float:
    """Returns the least x of a direction that survives."""

    def psi(t: float) -> float:
        return math.log1p(t) + alpha * math.log1p(t / alpha) - t

    t_min = brentq(psi, math.sqrt(alpha), 3.0)  # psi / t falls; its root lies between these, alpha <= 1
    return (1 + t_min) * (1 + alpha / t_min)


SELECTION = Selection("vbmf", "Tucker-2 ranks from variational Bayes, weakened to the budget", select)
