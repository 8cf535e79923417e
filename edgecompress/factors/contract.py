"""What a way of finding factors is: it says, per layer, in which metric they should be best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Layer
from edgecompress.nets.metric import LayerMetric


@dataclass(frozen=True)
class Factors:
    """A way to choose the metric of the factorisations."""

    name: str
    summary: str
    metrics: Callable[[nn.Module, Sequence[Layer], Sequence[Tensor], int, Progress], dict[str, LayerMetric]]
    """Takes the dense model, its layers, batches of calibration images and a seed."""
