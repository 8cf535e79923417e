"""How far images are from what batch norms remember, and what else is asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from edgecompress.core.synthesis_results import SynthesisSettings
from edgecompress.train.norm_statistics import (
    EPSILON,
    InputSums,
    StoredStatistics,
    WatchedNetwork,
    input_sums,
)

LEAST_VARIANCE = 0.01
"""Of the mean stored variance of a layer: channels that hardly vary do not count for more than that."""


@dataclass(frozen=True)
class Losses:
    """What is minimised, and its part that is about statistics."""

    total: Tensor
    statistics: Tensor


def image_losses(
    network: WatchedNetwork, images: Tensor, labels: Tensor | None, settings: SynthesisSettings
) -> Losses:
    """Returns the loss of images; labels are needed where classes weigh something."""
    outputs, seen = network(images)
    statistics = statistics_loss(images, seen, network.stored, settings)
    total = statistics
    if labels is not None:
        total = total + settings.class_weight * F.cross_entropy(outputs, labels)
    if settings.smooth_weight:
        total = total + settings.smooth_weight * _variation(images)
    return Losses(total, statistics)


def statistics_loss(
    images: Tensor,
    seen: Iterable[InputSums],
    stored: tuple[StoredStatistics, ...],
    settings: SynthesisSettings,
) -> Tensor:
    """Returns alpha n0 (|mu0|^2 + |sigma0 - 1|^2) + sum n (|mu - mu'|^2 + |sigma - sigma'|^2), per image.

    mu' and sigma' are stored, mu and sigma those of the input of each batch norm, of single images or of the
    batch; a batch norm that runs several times counts each time.
    """
    channels = images.shape[1]
    wanted = StoredStatistics("", images.new_zeros(channels), images.new_ones(channels))
    pixels = InputSums(-1, *input_sums(images), images[0, 0].numel())
    losses = [settings.input_weight * _distance(pixels, wanted, settings)]
    losses.extend(_norm_losses(seen, stored, settings))
    return torch.stack(losses).sum()


def _norm_losses(
    seen: Iterable[InputSums], stored: tuple[StoredStatistics, ...], settings: SynthesisSettings
) -> Iterator[Tensor]:
    for one in seen:
        if one.norm not in settings.skipped_norms:
            yield _distance(one, stored[one.norm], settings)


def _distance(one: InputSums, wanted: StoredStatistics, settings: SynthesisSettings) -> Tensor:
    sums, squares, count = one.sums, one.squares, one.count
    if settings.statistics == "batch":
        count *= len(sums)
        sums, squares = sums.sum(0, keepdim=True), squares.sum(0, keepdim=True)
    mean = sums / count
    difference = (mean - wanted.mean).square()
    if count > 1:  # a map of one pixel has no deviation
        variance = ((squares - sums * mean) / (count - 1)).clamp(min=0)
        difference = difference + ((variance + EPSILON).sqrt() - wanted.deviation).square()
    return _scaled(difference, wanted, settings).mean()


def _scaled(difference: Tensor, wanted: StoredStatistics, settings: SynthesisSettings) -> Tensor:
    """Adds up over channels."""
    if settings.scale == "sum":
        return difference.sum(1)
    if settings.scale == "mean":
        return difference.mean(1)
    variance = wanted.deviation.square()
    return (difference / variance.clamp(min=LEAST_VARIANCE * float(variance.mean()))).mean(1)


def _variation(images: Tensor) -> Tensor:
    down, right = images.diff(dim=-2), images.diff(dim=-1)
    return down.abs().mean() + right.abs().mean()
