"""How the levels of a recovery train: ours, and the settings of papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edgecompress.core.plugins import discover, pick
from edgecompress.core.types import Size
from edgecompress.errors import ConfigError
from edgecompress.train import optimisers
from edgecompress.train.loop import TrainSettings
from edgecompress.train.mimic import FEATURES, FEW_SAMPLE, Mix
from edgecompress.train.objectives import Precision, parse_precision
from edgecompress.train.optimiser_contract import Optimiser, OptimiserSettings
from edgecompress.train.schedules import parse_schedule

LARGE = 64
"""Images of at least this height and width are varied by enlarging parts of them, smaller ones by moving."""
ADAPTIVE = {"adamw": 5e-4, "adam-l2": 5e-4}
"""Learning rates of optimisers that scale gradients themselves."""
PLAIN_LR = 3e-3
"""Of others, where the preset has one of these."""


@dataclass(frozen=True)
class Training:
    """How one level trains."""

    mix: Mix
    lr: float
    optimiser: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    schedule: str = "cosine"
    warmup: float = 0.0
    batch_images: int = 64
    norms: Literal["train", "frozen"] = "train"
    ema: float | None = None
    clip_norm: float | None = None
    trains: Literal["all", "blocks"] = "all"
    """Every weight, or those of the blocks that replaced layers."""
    vary: str | None = None
    """As `--augment`; None: as suits the size of the images."""
    precision: Precision = "float32"
    tries_rates: bool = False
    """Whether a lower learning rate is used where this one ruins the network in a short try."""

    def settings(self, steps: int) -> TrainSettings:
        """Returns what the loop takes."""
        return TrainSettings(
            steps=steps,
            schedule=parse_schedule(self.schedule, warmup=self.warmup),
            optimiser=self.optimiser,
            optimiser_settings=OptimiserSettings(
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                nesterov=self.nesterov,
            ),
            norms=self.norms,
            ema=self.ema,
            clip_norm=self.clip_norm,
        )

    @property
    def counts_epochs(self) -> bool:
        """Whether its schedule depends on how long an epoch is."""
        return self.schedule.startswith("plateau")


@dataclass(frozen=True)
class RecoverPreset:
    """Settings of all levels that train, by name of the level."""

    name: str
    summary: str
    mimic: Training
    synthetic: Training
    distill: Training
    full: Training

    def of(self, level: str) -> Training:
        """Returns the settings of a level."""
        found: Training = getattr(self, level)
        return found


_PAPER = Training(FEATURES, 1e-3, schedule="plateau:10:0.1:0.1", norms="frozen", trains="blocks", vary="none")
_PAPER_ALL = replace(_PAPER, norms="train", trains="all", vary=None)
_THESIS = Training(
    Mix(answers=0.9, labels=0.1, temperature=4.0), 0.1, schedule="steps:0.5,0.75:0.1", vary="flip"
)
_OURS = Training(
    Mix(answers=1.0, temperature=2.0),
    5e-4,
    optimiser="adamw",
    warmup=0.05,
    clip_norm=5.0,
    norms="frozen",
    tries_rates=True,
)
_OURS_LAYERS = replace(
    _OURS,
    mix=Mix(features=0.1, answers=1.0, temperature=4.0, relative=True),
    lr=5e-3,
    optimiser="sgd",
    nesterov=True,
)
PRESETS: Mapping[str, RecoverPreset] = {
    one.name: one
    for one in (
        RecoverPreset(
            "ours",
            "AdamW at 5e-4, answers at T = 2, batch norms frozen; see docs/recovery.md",
            mimic=_OURS_LAYERS,
            synthetic=_OURS_LAYERS,
            distill=_OURS,
            full=replace(_OURS, mix=Mix(answers=0.9, labels=0.1, temperature=2.0)),
        ),
        RecoverPreset(
            "svd-nas",
            "SVD-NAS: SGD at 1e-3, a tenth after 11 epochs without a better one, then the end",
            mimic=_PAPER,
            synthetic=_PAPER,
            distill=replace(_PAPER_ALL, mix=Mix(features=1.0, answers=0.95, temperature=6.0)),
            full=replace(_PAPER_ALL, mix=Mix(labels=1.0)),
        ),
        RecoverPreset(
            "few-sample",
            "SVD-NAS with few images: 0.95 * 36 * KL at T = 6, 0.05 * cross-entropy, and squared errors",
            mimic=_PAPER,
            synthetic=_PAPER,
            distill=replace(_PAPER_ALL, mix=Mix(features=1.0, answers=0.95, temperature=6.0)),
            full=replace(_PAPER_ALL, mix=FEW_SAMPLE),
        ),
        RecoverPreset(
            "thesis",
            "RARTS: 0.9 * 16 * KL at T = 4, 0.1 * cross-entropy, SGD at 0.1, a tenth at 1/2 and 3/4",
            mimic=replace(_THESIS, mix=Mix(answers=1.0)),
            synthetic=replace(_THESIS, mix=Mix(answers=1.0)),
            distill=replace(_THESIS, mix=Mix(answers=1.0)),
            full=_THESIS,
        ),
    )
}
"""By name."""


def pick_recipe(
    preset: str,
    *,
    optimizer: str | None = None,
    lr: float | None = None,
    temperature: float | None = None,
    batch_images: int | None = None,
    augment: str | None = None,
    precision: str = "float32",
) -> RecoverPreset:
    """Returns a preset with what was given changed in all its levels.

    Raises:
        ConfigError: a name is not known, or a number is out of range.
    """
    found = pick(PRESETS, preset, what="preset")
    if optimizer is not None:
        pick(discover(optimisers, Optimiser), optimizer, what="optimizer")
    computed_in = parse_precision(precision)
    for flag, value in (("--lr", lr), ("--temperature", temperature), ("--batch-images", batch_images)):
        if value is not None and value <= 0:
            raise ConfigError(f"{flag} {value:g}: must be above 0")

    def changed(one: Training) -> Training:
        mix = one.mix if temperature is None else replace(one.mix, temperature=temperature)
        used = one.optimiser if optimizer is None else optimizer
        plain = PLAIN_LR if one.optimiser in ADAPTIVE else one.lr
        usual = one.lr if used == one.optimiser else ADAPTIVE.get(used, plain)
        return replace(
            one,
            mix=mix,
            optimiser=used,
            nesterov=one.nesterov and used not in ADAPTIVE,
            lr=usual if lr is None else lr,
            tries_rates=one.tries_rates and lr is None,
            batch_images=one.batch_images if batch_images is None else batch_images,
            vary=one.vary if augment is None else augment,
            precision=computed_in,
        )

    return replace(
        found,
        mimic=changed(found.mimic),
        synthetic=changed(found.synthetic),
        distill=changed(found.distill),
        full=changed(found.full),
    )


def variation(training: Training, size: Size, *, labels: bool) -> str:
    """Returns how images are varied."""
    if training.vary is not None:
        return training.vary
    if min(size) >= LARGE:
        return "zoom30,flip" if labels else "zoom30,flip,mix"
    return f"crop{max(1, min(size) // 8)},flip"
