"""What a compression method is: candidates with their cost, and the kernels that fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from edgecompress.core.costs import block_macs, block_params
from edgecompress.core.types import Block, Candidate, Layer
from edgecompress.nets.chains import Kernels
from edgecompress.nets.metric import LayerMetric

Fill = Callable[[Candidate], Kernels]
"""Returns the weights of a candidate's block. Factorisations are made once and truncated."""


@dataclass(frozen=True)
class Method:
    """A way to rewrite one layer."""

    name: str
    summary: str
    candidates: Callable[[Layer], Iterator[Candidate]]
    """Yields every rewrite that has fewer MACs or parameters than the layer; it builds nothing.

    Raises:
        UnsupportedLayer: the method cannot take this layer.
    """
    factorise: Callable[[Tensor, Layer, LayerMetric], Fill]
    """Takes the layer's (f, c, kh, kw) kernel in float64 and the metric to be best in."""


def single_candidate(
    layer: Layer, block: Block, *, method: str, family: str, ranks: tuple[int, ...]
) -> Candidate:
    """Returns the candidate that puts `block` in place of one layer."""
    return Candidate(
        method=method,
        family=family,
        ranks=ranks,
        layers=(layer.name,),
        blocks=(block,),
        params=block_params(block),
        macs=block_macs(block, layer.in_size),
    )


def saves(candidate: Candidate, layer: Layer) -> bool:
    """Tells whether a candidate costs fewer MACs or fewer parameters than the layer it replaces."""
    dense = Block(branches=((layer.op,),))
    return candidate.macs < block_macs(dense, layer.in_size) or candidate.params < block_params(dense)
