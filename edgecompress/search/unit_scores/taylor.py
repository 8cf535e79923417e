"""How much the loss changes, to first order, when a unit is faded out.

The gradient by a gate at one is taken for every image on its own: over a batch the gradients of a trained
network cancel. Its mean size is `taylor`; its mean square is `fisher`, which to second order is twice the
divergence from the dense network. Without labels they are drawn from the network's own probabilities,
since the divergence itself has no gradient where it is zero.

Reference: Molchanov et al., Importance Estimation for Neural Network Pruning, CVPR 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Group
from edgecompress.errors import DataError
from edgecompress.nets.gates import gate_gradients
from edgecompress.search.image_pool import Batch
from edgecompress.search.score_contract import Scores, ScoreSettings, UnitScores


def score(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Batch],
    settings: ScoreSettings,
    seed: int,
    progress: Progress,
    *,
    power: int,
) -> UnitScores:
    """Returns the mean over images of |gradient| to a power.

    Raises:
        DataError: there are no images.
    """
    count = sum(len(images) for images, _ in batches)
    if count == 0:
        raise DataError("gradients by gates need images; there are none")
    generator = torch.Generator().manual_seed(seed)
    total: UnitScores = {g.name: torch.zeros(g.width, dtype=torch.float64) for g in groups}
    for images, labels in progress.track(batches, "gradients by gates"):
        known = drawn_labels(model, images, generator) if labels is None else labels
        found = gate_gradients(model, groups, images, functools.partial(_summed_loss, known))
        for name, gradient in found.items():
            total[name] += gradient.double().abs().pow(power).sum(0)
    return {name: one / count for name, one in total.items()}


def _summed_loss(labels: Tensor, logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


@torch.no_grad()
def drawn_labels(model: nn.Module, images: Tensor, generator: torch.Generator) -> Tensor:
    """Returns one label per image, drawn from the network's own probabilities."""
    return torch.multinomial(model(images).softmax(1), 1, generator=generator).flatten()


SCORES = Scores("taylor", "mean size of the gradient by a gate", functools.partial(score, power=1))
FISHER = Scores("fisher", "mean square of the gradient by a gate", functools.partial(score, power=2))
