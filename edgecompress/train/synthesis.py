"""Makes images for which the inputs of batch norms look as they did in training; no photograph is needed.

Everything follows from the network, the settings, the seed and the number of the batch, so batches can be
made in any order, by any process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.synthesis_results import Stopped, SynthesisSettings
from edgecompress.train.norm_statistics import WatchedNetwork
from edgecompress.train.synthesis_loss import Losses, image_losses

BETTER = 1e-4
"""Share by which a loss must fall to count as lower."""
FALL, COLOUR = 1.6, 0.35
"""With these, neighbouring pixels and colours are as much alike as in small photographs: amplitudes fall with
frequency to this power, and every channel has so much of its own beside what all share."""
DIVERGED = 1000.0
"""Times the first loss, after which nothing good is to be expected."""


@dataclass(frozen=True)
class ImageBatch:
    """Which images to make."""

    number: int
    """Of the batch, from 0."""
    shape: tuple[int, int, int]
    classes: int
    seed: int

    def generator(self) -> torch.Generator:
        """Returns the source of everything random in this batch."""
        return torch.Generator().manual_seed(((self.seed * 1_000_003 + self.number) * 7919 + 2) % 2**63)

    def labels(self, settings: SynthesisSettings) -> Tensor | None:
        """Returns a class for each image, all classes equally often; None where classes weigh nothing."""
        if not settings.class_weight:
            return None
        first = self.number * settings.batch_images
        return torch.arange(first, first + settings.batch_images) % self.classes


@dataclass(frozen=True)
class MadeImages:
    """A finished batch."""

    images: Tensor
    """As they are stored, float16."""
    labels: Tensor | None
    start_loss: float
    end_loss: float
    statistics_loss: float
    asked_class: float | None
    iterations: int
    stopped: Stopped


def make_images(
    network: WatchedNetwork,
    batch: ImageBatch,
    settings: SynthesisSettings,
    *,
    progress: Progress = NO_PROGRESS,
) -> MadeImages:
    """Makes one batch of images and returns the best it has seen."""
    generator = batch.generator()
    images = first_images(batch, settings, generator).requires_grad_()
    labels = batch.labels(settings)
    optimiser = Adam([images], lr=settings.learning_rate)
    follow = _schedule(optimiser, settings)
    descent = _Descent(settings)
    # one more than steps: the images after the last step are looked at as well
    for _ in progress.track(range(settings.iterations + 1), descent):
        losses = image_losses(network, _moved(images, settings, generator), labels, settings)
        if descent.ends(losses, images):
            break
        optimiser.zero_grad()
        losses.total.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        follow(descent.value)
    stored = descent.best.to(torch.float16)
    return MadeImages(
        images=stored,
        labels=labels,
        start_loss=descent.first,
        end_loss=descent.lowest,
        statistics_loss=descent.statistics,
        asked_class=_asked(network, stored, labels),
        iterations=descent.evaluations - 1,
        stopped=descent.stopped,
    )


class _Descent:
    """How the loss goes, and the best images so far. Its text says how things stand."""

    def __init__(self, settings: SynthesisSettings) -> None:
        self._settings = settings
        self.evaluations = 0
        self.value = self.first = self.lowest = self.statistics = math.inf
        self.best = torch.empty(0)
        self.stopped: Stopped = "iterations"
        self._mark, self._marked = math.inf, 0

    def ends(self, losses: Losses, images: Tensor) -> bool:
        """Notes the loss of images; tells whether it was the last."""
        self.value = float(losses.total.detach())
        self.evaluations += 1
        if self.evaluations == 1:
            self.first, self.best = self.value, images.detach().clone()
        if not self.value < DIVERGED * self.first:  # true of nan as well
            self.stopped = "diverged"
            return True
        if self.value < self.lowest:
            self.lowest, self.statistics = self.value, float(losses.statistics.detach())
            self.best.copy_(images.detach())
        if self.value < self._mark * (1 - BETTER):
            self._mark, self._marked = self.value, self.evaluations
        patience = self._settings.stop_patience
        if patience is not None and self.evaluations - self._marked >= patience:
            self.stopped = "plateau"
            return True
        return self.evaluations > self._settings.iterations

    def __str__(self) -> str:
        return "images" if self.evaluations == 0 else f"images, loss {self.lowest:.4g}"


def first_images(batch: ImageBatch, settings: SynthesisSettings, generator: torch.Generator) -> Tensor:
    """Returns the images to start from."""
    size = (settings.batch_images, *batch.shape)
    if settings.start == "faint":  # as published: byte values over their variance, not their deviation
        return (torch.randint(0, 255, size, generator=generator) - 127.5) / 5418.75
    noise = torch.randn(size, generator=generator)
    if settings.start == "noise":
        return noise
    grey = torch.randn((settings.batch_images, 1, *batch.shape[1:]), generator=generator)
    return _unit(_unit(_photographic(grey)) + COLOUR * _unit(_photographic(noise)))


def _photographic(noise: Tensor) -> Tensor:
    """Lets amplitudes fall with frequency, as they do in photographs."""
    height, width = noise.shape[-2:]
    down, right = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
    frequency = torch.hypot(down, right).clamp(min=1 / max(height, width))
    changed: Tensor = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency**FALL, s=(height, width))
    return changed


def _unit(images: Tensor) -> Tensor:
    return images / images.std()


def _moved(images: Tensor, settings: SynthesisSettings, generator: torch.Generator) -> Tensor:
    """Returns images rolled and flipped at random, so that no place of the picture is special."""
    most = settings.shift_pixels
    if most == 0:
        return images
    down, right, flip = torch.randint(-most, most + 1, (3,), generator=generator).tolist()
    rolled = images.roll((down, right), (2, 3))
    return rolled.flip(3) if flip > 0 else rolled


def _schedule(optimiser: Adam, settings: SynthesisSettings) -> Callable[[float], None]:
    """Returns what sets the learning rate after an iteration with a given loss."""
    if settings.schedule == "plateau":
        least = settings.min_learning_rate
        return ReduceLROnPlateau(optimiser, factor=0.1, patience=settings.patience, min_lr=least).step
    least = settings.min_learning_rate / settings.learning_rate
    steps = settings.iterations
    cosine = LambdaLR(optimiser, lambda step: max(least, (1 + math.cos(math.pi * step / steps)) / 2))
    return lambda loss: cosine.step()


@torch.no_grad()
def _asked(network: WatchedNetwork, images: Tensor, labels: Tensor | None) -> float | None:
    if labels is None:
        return None
    outputs, _ = network(images.float())
    return float((outputs.argmax(1) == labels).float().mean())
