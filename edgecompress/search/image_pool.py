"""The images a gradient search learns from, and what the network should say about them.

With labels the loss is the cross-entropy with them. Without, it is the cross-entropy with the dense model's
own probabilities q, that is H(q) + KL(q | p): what labels drawn from the dense model would give on average.
The divergence alone would not do: it is zero for the dense model, and zero times any cost is best. H(q) is
what the dense model loses itself, the measure of what a per cent more loss means.

Which images a step sees follows from seed and step alone, so a search can go on where it was stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.errors import DataError, ModelError
from edgecompress.train.parallel import add_up_, own_share

Batch = tuple[Tensor, Tensor | None]
"""Images and their labels, if known."""


@dataclass(frozen=True)
class ImagePool:
    """Images in the batches they came in, and one target for each."""

    batches: tuple[Tensor, ...]
    targets: Tensor
    """(n,) labels or (n, classes) probabilities."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.batches[0].shape[1:]
        return (channels, height, width)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the images of these numbers and their targets."""
        starts = list(itertools.accumulate((len(batch) for batch in self.batches), initial=0))
        places = torch.bucketize(indices, torch.tensor(starts[1:]), right=True).tolist()
        images = [self.batches[b][i - starts[b]] for b, i in zip(places, indices.tolist(), strict=True)]
        return torch.stack(images), self.targets[indices]


def make_pool(model: nn.Module, batches: Sequence[Batch]) -> ImagePool:
    """Returns the pool of some batches; unless all have labels, the model's outputs are the targets.

    Raises:
        DataError: there are no images.
        ModelError: the model's outputs are not finite.
    """
    if sum(len(images) for images, _ in batches) == 0:
        raise DataError("a gradient search needs images; there are none")
    labels = [found for _, found in batches if found is not None]
    images = tuple(found for found, _ in batches)
    return ImagePool(images, torch.cat(labels) if len(labels) == len(batches) else _outputs(model, images))


@torch.no_grad()
def _outputs(model: nn.Module, batches: Sequence[Tensor]) -> Tensor:
    """Returns the class probabilities of all images; each process computes a share of the batches."""
    classes = model(batches[0][:1]).shape[1]
    found = [torch.zeros(len(batch), classes, dtype=batch.dtype) for batch in batches]
    for index in own_share(torch.arange(len(batches))).tolist():
        found[index] = model(batches[index]).softmax(1)
    total = torch.cat(found)
    add_up_(total)
    if not bool(total.isfinite().all()):
        raise ModelError("the model's outputs are not finite; check the weights and preprocessing")
    return total


def task_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross-entropy with labels or probabilities, summed over images."""
    return F.cross_entropy(logits, targets, reduction="sum")
