"""LR-S2: spatial SVD, ranks by the learning-compression trade-off of energy against cost.

    minimise  sum_k  h C_k(r_k) + sum_{i > r_k} s_{k,i}^2

has cost C linear in r and s^2 falling, so each layer keeps exactly the values with s^2 > h c_k, its
cost per rank. The experiments behind the published LR-S2 rows compared s^2 with h times the cost of
the whole dense layer instead; both forms are here.

References: Idelbayev and Carreira-Perpinan, Low-Rank Compression of Neural Nets: Learning the Rank of
Each Layer, CVPR 2020; SVD-NAS (WACV 2023), supplement, equations S.1 and S.2.
"""

from __future__ import annotations

import functools

from edgecompress.methods.lowrank import pair_candidate
from edgecompress.search.contract import Choices, Problem, Selection, dense_shape_cost, shape_cost
from edgecompress.search.knob import Ladder, meet_by_threshold
from edgecompress.search.spectra import Spectrum, spectra_of


def select(problem: Problem, *, published: bool) -> Choices:
    """Keeps the singular values worth their cost at one exchange rate, which meets the budget."""
    return meet_by_threshold(problem, ladders(problem, published=published))


def ladders(problem: Problem, *, published: bool) -> list[Ladder]:
    """Returns s^2 per unit of cost for every layer.

    Cost means parameters if they are the budget, and MACs otherwise.
    """

    def unit(spectrum: Spectrum) -> float:
        if published:
            return dense_shape_cost(problem.metric)(spectrum.layer)
        return rank_cost(spectrum, problem)

    spectra = spectra_of(problem, "S2", "S4(1)")
    return [Ladder(s.layer, s.family, s.energies / unit(s)) for s in spectra]


def rank_cost(spectrum: Spectrum, problem: Problem) -> float:
    """Returns what one more rank costs; a bias costs the same at every rank."""
    one, two = (pair_candidate(spectrum.layer, spectrum.family, rank) for rank in (1, 2))
    cost = shape_cost(problem.metric)
    return cost(two) - cost(one)


PER_RANK = Selection(
    "lr-s2",
    "spatial SVD, s^2 against the cost of a rank (learning-compression)",
    functools.partial(select, published=False),
)
PUBLISHED = Selection(
    "lr-s2-published",
    "the same, s^2 against the cost of the whole layer, as in the published rows",
    functools.partial(select, published=True),
)
