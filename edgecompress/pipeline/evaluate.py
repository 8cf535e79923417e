"""How good a model is: accuracy on labelled images, distance to the dense model on any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Accuracy
from edgecompress.data.splits import Split, require_labels
from edgecompress.errors import ModelError

PIXELS_PER_BATCH = 1 << 18


def batch_size(input_shape: tuple[int, int, int]) -> int:
    """Returns a batch that fits the caches and the memory of a small machine."""
    return max(8, min(128, PIXELS_PER_BATCH // (input_shape[1] * input_shape[2])))


@torch.no_grad()  # not inference mode: what a model caches then could not be used with gradients later
def accuracy(model: nn.Module, split: Split, *, size: int, progress: Progress, what: str) -> Accuracy:
    """Returns top-1 and, with more than five classes, top-5 on a labelled split.

    Raises:
        DataError: the images have no labels.
        ModelError: an output is not finite.
    """
    require_labels(split)
    hits, total, classes = torch.zeros(5, dtype=torch.long), 0, 0
    batches = progress.track(split.batches(size), f"accuracy, {what}", total=-(-len(split) // size))
    for images, labels in batches:
        assert labels is not None  # checked above
        logits = _finite(model(images))
        classes = logits.shape[1]
        best = logits.topk(min(5, classes), dim=1).indices
        right = best == labels[:, None]
        hits[: right.shape[1]] += right.sum(0)
        total += len(images)
    top = 100 * hits.cumsum(0) / total
    return Accuracy(top1=float(top[0]), top5=float(top[4]) if classes > 5 else None, images=total)


@torch.no_grad()
def log_probabilities(model: nn.Module, batches: Sequence[Tensor]) -> Tensor:
    """Returns the log of the class probabilities for all images."""
    return torch.cat([_finite(model(batch)).log_softmax(1) for batch in batches])


def divergence(model: nn.Module, batches: Sequence[Tensor], reference: Tensor) -> float:
    """Returns KL(reference || model) per image; needs no labels."""
    found = log_probabilities(model, batches)
    return float(F.kl_div(found, reference, log_target=True, reduction="batchmean"))


def divergences(model: nn.Module, batches: Sequence[Tensor], reference: Tensor) -> Tensor:
    """Returns KL(reference || model) of each image, at most 1.

    Beyond that an image is lost, and by how much says nothing about others; uncapped, a few such images
    decide which of two networks is better.
    """
    found = log_probabilities(model, batches)
    each = F.kl_div(found.double(), reference.double(), log_target=True, reduction="none")
    return each.sum(1).clamp(0, 1)


def is_clearly_worse(before: Tensor, after: Tensor) -> bool:
    """Tells whether what images lost grew by more than twice the standard error of the mean."""
    change = after - before
    error = change.std() / len(change) ** 0.5 if len(change) > 1 else torch.zeros(())
    return bool(change.mean() > 2 * error)


def _finite(logits: Tensor) -> Tensor:
    if not bool(logits.isfinite().all()):
        raise ModelError("the model's outputs are not finite; check the weights and preprocessing")
    return logits
