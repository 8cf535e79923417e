"""The `global` selection of LoRITa: the same share of the singular values of each pool goes, smallest first.

Convolutions are one pool, in which a value counts relative to the largest of its layer: batch norms make
their scale meaningless. Linear layers count as they are, those of attention and all others in pools of their
own.

The paper's `local` selection, the same share of every layer, is `uniform`. Its `iter` and `iter_fine` take
small steps of `global` with a new decomposition after each; without training in between that changes nothing,
as the values that are left stay what they are.

Reference: Zhang et al., Structure-Preserving Network Compression via Low-Rank Induced Training Through
Linear Layers Composition, 2024 (arXiv 2405.03089).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from edgecompress.core.types import Layer
from edgecompress.search.contract import Choices, Problem, Selection
from edgecompress.search.knob import Ladder, meet_by_threshold
from edgecompress.search.spectra import Spectrum, spectra_of

Pool = Literal["convolutions", "attention", "others"]


def select(problem: Problem) -> Choices:
    """Keeps one share of every pool, 1 rank per layer at least."""
    pools: dict[Pool, list[Spectrum]] = {}
    for spectrum in spectra_of(problem, "S4(1)"):
        pools.setdefault(pool_of(spectrum.layer), []).append(spectrum)
    return meet_by_threshold(problem, [one for pool, those in pools.items() for one in _ladders(pool, those)])


def pool_of(layer: Layer) -> Pool:
    """Returns the pool of a layer; attention is told by its name."""
    if layer.op.kind == "conv2d":
        return "convolutions"
    return "attention" if "attention" in layer.name.replace("attn", "attention").lower() else "others"


def _ladders(pool: Pool, spectra: Sequence[Spectrum]) -> list[Ladder]:
    """Ranks are worth the share of their pool that is smaller."""
    values = [spectrum.energies.sqrt() for spectrum in spectra]
    if pool == "convolutions":
        values = [one / one[0].clamp_min(torch.finfo(one.dtype).tiny) for one in values]
    together = torch.cat(values)
    order = together.argsort(stable=True, descending=True)
    places = torch.empty_like(together)
    places[order] = torch.arange(len(together), 0, -1, dtype=together.dtype) / len(together)
    parts = torch.split(places, [len(one) for one in values])
    return [Ladder(one.layer, one.family, part) for one, part in zip(spectra, parts, strict=True)]


SELECTION = Selection(
    "lorita-global",
    "the same share of all singular values of convolutions, and of linear layers (LoRITa)",
    select,
)
