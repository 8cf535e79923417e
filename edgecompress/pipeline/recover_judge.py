"""How good networks are on the selection images, and which of two is kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.recover_results import Standing
from edgecompress.data.splits import Split


@dataclass(frozen=True)
class Seen:
    """What a network says of every selection image."""

    divergences: Tensor
    """KL(dense | network), at most 1; beyond that an image is lost, and by how much does not matter."""
    hits: Tensor | None
    """Whether the first answer is right."""
    right: Tensor | None
    """Probability of the right class."""

    @property
    def standing(self) -> Standing:
        """All of it on average."""
        return Standing(
            top1=None if self.hits is None else 100 * float(self.hits.mean()),
            right=None if self.right is None else 100 * float(self.right.mean()),
            divergence=float(self.divergences.mean()),
        )


@dataclass(frozen=True)
class SelectionJudge:
    """Judges networks by the selection images, against labels where there are some and the dense network."""

    dense: nn.Module
    split: Split
    labelled: bool
    batch_images: int

    @cached_property
    def _reference(self) -> Tensor:
        return self._log_probabilities(self.dense)

    def seen(self, network: nn.Module) -> Seen:
        """Runs a network on all images; outputs that are not finite lose them."""
        found, reference = self._log_probabilities(network), self._reference
        each = F.kl_div(found, reference, log_target=True, reduction="none").sum(1)
        lost = each.nan_to_num(nan=1.0, posinf=1.0).clamp(0, 1)
        labels = self.split.images.labels() if self.labelled else None
        if labels is None:
            return Seen(lost, None, None)
        own = labels[list(self.split.indices)]
        right = found.gather(1, own[:, None])[:, 0].exp().nan_to_num(nan=0.0)
        return Seen(lost, (found.argmax(1) == own).double(), right)

    def likeness(self, network: nn.Module) -> float:
        """Scores how near a network is to the dense one; 0 is the same."""
        return -100 * self.seen(network).standing.divergence

    def rightness(self, network: nn.Module) -> float:
        """Scores a network by labels: the mean probability of the right class, in percent.

        It goes up and down with top-1 and is far less noisy on few images.
        """
        standing = self.seen(network).standing
        assert standing.right is not None  # asked for where there are labels only
        return standing.right

    @torch.no_grad()
    def _log_probabilities(self, network: nn.Module) -> Tensor:
        network.eval()
        batches = self.split.batches(self.batch_images)
        return torch.cat([network(images).double().log_softmax(1) for images, _ in batches])


def is_better(new: Seen, old: Seen) -> bool:
    """Tells whether a network takes the place of another.

    With labels it does where top-1 is higher by more than twice the standard error of the difference, and
    does not where it is lower by more. In between, and without labels, what says more about every image
    decides: the probability of the right class, or the divergence from the dense network.
    """
    if new.hits is None or old.hits is None or new.right is None or old.right is None:
        return bool(new.divergences.mean() < old.divergences.mean())
    gain = new.hits - old.hits
    error = float(gain.std()) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    if abs(float(gain.mean())) > 2 * error:
        return bool(gain.mean() > 0)
    return bool(new.right.mean() > old.right.mean())
