"""Settings of `edgecompress synthesize`, and what it returns and writes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edgecompress.core.types import AtLeast0, AtLeast1, ModelRef, Record

Stopped = Literal["iterations", "plateau", "diverged"]
SYNTHESIS_FILE = "synthesis.json"


class SynthesisSettings(Record):
    """How images are made of the statistics in batch norms."""

    preset: str
    """Where the settings start from; the others below may differ from it."""
    statistics: Literal["image", "batch"]
    """Mean and deviation of every image by itself, or of all images of a batch together."""
    scale: Literal["sum", "mean", "relative"]
    """Over the channels of a batch norm: n = 1, n = 1/f, or n = 1/f with differences in stored deviations."""
    input_weight: float = Field(ge=0)
    """Alpha: of the term that asks for pixels with mean 0 and deviation 1."""
    skipped_norms: tuple[AtLeast0, ...] = ()
    """Batch norms with kappa = 0, numbered in the order of modules."""
    class_weight: float = Field(default=0.0, ge=0)
    """Of the cross-entropy to labels that are dealt out evenly; 0: no labels."""
    smooth_weight: float = Field(default=0.0, ge=0)
    """Of the mean difference between neighbouring pixels (total variation)."""
    shift_pixels: AtLeast0 = 0
    """Before each iteration images are rolled by up to so many pixels, and flipped or not."""
    start: Literal["faint", "noise", "smooth"]
    """Nearly grey images, noise of deviation 1, or such noise with the spectrum of photographs."""
    learning_rate: float = Field(gt=0)
    schedule: Literal["plateau", "cosine"]
    """Of the learning rate: times 0.1 after `patience`, or down to nothing along a cosine."""
    patience: AtLeast1 = 100
    """Iterations without a lower loss after which the learning rate falls."""
    min_learning_rate: float = Field(default=1e-4, ge=0)
    iterations: AtLeast1
    """At most."""
    stop_patience: AtLeast1 | None = None
    """Iterations without a lower loss after which a batch is finished; None: never."""
    batch_images: AtLeast1
    """Made together; one file each."""


class ShardSummary(Record):
    """One file of images."""

    file: str
    images: AtLeast1
    start_loss: float
    end_loss: float
    """Of the images that were kept, the best ones."""
    statistics_loss: float
    """The part of `end_loss` that is about batch norms and pixels."""
    asked_class: float | None
    """Share of the images of which the network says what their label asks for; None without labels."""
    iterations: AtLeast0
    """Made; the kept images may be of an earlier one."""
    stopped: Stopped
    seconds: float


class SynthesisResult(Record):
    """What `synthesize` did. `synthesis.json`."""

    schema_version: Literal[1] = 1
    run: str
    model: ModelRef
    model_sha256: str
    """Of the weights and statistics the images were made from."""
    norms: AtLeast1
    """Batch norms that took part."""
    images: AtLeast1
    settings: SynthesisSettings
    seed: int
    shards: tuple[ShardSummary, ...]
    contact_sheet: str
    warnings: tuple[str, ...]
    seconds: float
    """Of all shards, added up over processes."""
