"""The same kept share of every layer."""

from __future__ import annotations

import torch

from edgecompress.methods.lowrank import pair_candidate
from edgecompress.search.contract import Choices, Problem, Selection, dense_shape_cost, shape_cost
from edgecompress.search.knob import Ladder, meet_by_threshold
from edgecompress.search.spectra import Spectrum, spectra_of


def select(problem: Problem) -> Choices:
    """Gives every layer the largest rank within one share of its cost.

    The share is of the parameters if they are the budget, and of the MACs otherwise.
    """
    return meet_by_threshold(problem, [_ladder(s, problem) for s in spectra_of(problem, "S4(1)")])


def _ladder(spectrum: Spectrum, problem: Problem) -> Ladder:
    layer, family = spectrum.layer, spectrum.family
    cost, dense = shape_cost(problem.metric), dense_shape_cost(problem.metric)(layer)
    ranks = range(1, len(spectrum.energies) + 1)
    shares = [cost(pair_candidate(layer, family, rank)) / dense for rank in ranks]
    return Ladder(layer, family, -torch.tensor(shares, dtype=torch.float64))


SELECTION = Selection("uniform", "the same share of every layer's cost", select)
