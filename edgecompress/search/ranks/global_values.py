"""The largest singular values of all layers in one pool, as Decomposable-Net picks its ranks.

A layer gets as many ranks as it has values among the K largest; K meets the budget. Values of layers
followed by a batch norm are comparable only up to a scale, hence the relative variant.

Reference: Yaguchi et al., Decomposable-Net: Scalable Low-Rank Compression for Neural Networks,
IJCAI 2021; dividing by a layer's largest value is what LoRITa does for convolutions.
"""

from __future__ import annotations

import functools

import torch

from edgecompress.search.contract import Choices, Problem, Selection
from edgecompress.search.knob import Ladder, meet_by_threshold
from edgecompress.search.spectra import Spectrum, spectra_of

RANK_MIN = 5
"""No layer gets fewer ranks (unless it has fewer), in training and in evaluation."""


def select(problem: Problem, *, relative: bool, rank_min: int = RANK_MIN) -> Choices:
    """Keeps the K largest singular values of the model, `rank_min` per layer at least."""
    ladders = [_ladder(spectrum, relative=relative) for spectrum in spectra_of(problem, "S4(1)")]
    return meet_by_threshold(problem, ladders, rank_min=rank_min)


def _ladder(spectrum: Spectrum, *, relative: bool) -> Ladder:
    values = spectrum.energies.sqrt()
    scale = values[0].clamp_min(torch.finfo(values.dtype).tiny) if relative else 1.0
    return Ladder(spectrum.layer, spectrum.family, values / scale)


ABSOLUTE = Selection(
    "global-values",
    "the largest singular values of all layers (Decomposable-Net)",
    functools.partial(select, relative=False),
)
RELATIVE = Selection(
    "global-values-relative",
    "the same, each divided by the largest of its layer",
    functools.partial(select, relative=True),
)
