"""The same share of the energy, the sum of s^2, in every layer."""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompress.search.contract import Choices, Problem, Selection
from edgecompress.search.knob import Ladder, meet_by_threshold
from edgecompress.search.spectra import spectra_of


def select(problem: Problem) -> Choices:
    """Gives every layer the least rank that reaches one share of its energy."""
    spectra = spectra_of(problem, "S4(1)")
    return meet_by_threshold(problem, [Ladder(s.layer, s.family, tail_shares(s.energies)) for s in spectra])


def tail_shares(energies: Tensor) -> Tensor:
    """Returns, for each rank, the share of the energy that would be lost without it and those after it."""
    tails = energies.flip(0).cumsum(0).flip(0)  # summed from the small end, which keeps small tails exact
    return tails / tails[0].clamp_min(torch.finfo(tails.dtype).tiny)


SELECTION = Selection("energy", "the same share of the squared singular values of every layer", select)
