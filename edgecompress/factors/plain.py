"""Plain SVD: best in the Frobenius norm of the weights, as in the papers. Needs no images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Layer
from edgecompress.factors.contract import Factors
from edgecompress.nets.metric import PLAIN, LayerMetric


def plain_metrics(
    model: nn.Module, layers: Sequence[Layer], batches: Sequence[Tensor], seed: int, progress: Progress
) -> dict[str, LayerMetric]:
    """Returns the identity metric for every layer."""
    return {layer.name: PLAIN for layer in layers}


FACTORS = Factors("plain", "best for the weights alone (truncated SVD)", plain_metrics)
