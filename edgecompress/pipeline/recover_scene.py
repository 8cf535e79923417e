"""What the levels of a recovery work with."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, nn

from edgecompress.core.memo import Memo
from edgecompress.core.progress import Progress
from edgecompress.core.runs import plain_options
from edgecompress.core.types import Candidate, Layer, Plan, Record
from edgecompress.data.splits import Split, Splits
from edgecompress.nets.kept import kept_tensors
from edgecompress.nets.modules import find_layers
from edgecompress.pipeline.evaluate import batch_size
from edgecompress.pipeline.recover_judge import SelectionJudge
from edgecompress.pipeline.recover_recipes import RecoverPreset
from edgecompress.pipeline.recover_rows import staying_rows
from edgecompress.train.mimic import Place, find_places

MOST_IMAGES, MOST_PIXELS = 1024, 512 * 224 * 224
"""That all wait at one layer while it is repaired: as much as memory holds."""
PLACE_IMAGES = 64
"""For the variance of outputs and the likeness of units."""


@dataclass(frozen=True)
class Scene:
    """A compressed network, the dense one it comes from, images and settings."""

    plan: Plan
    start: nn.Module
    """The network as it came."""
    dense: nn.Module
    """In eval mode, not trained, its attention written as in the plan."""
    splits: Splits
    labelled: bool
    """Whether the images to learn from have labels."""
    judge: SelectionJudge
    recipe: RecoverPreset
    seconds: Mapping[str, float]
    """For training, by level."""
    steps: Mapping[str, float] | None
    """The same in steps, whatever the time; None: as many as fit into it."""
    synthetic: str | None
    """Directory of synthetic images, where there is one."""
    memo: Memo
    options: Mapping[str, object]
    inputs: Mapping[str, str]
    seed: int
    progress: Progress
    climbed: list[str] = field(default_factory=list)
    """Levels that were kept, in order: what a later level starts from."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        return self.plan.model.input_shape

    @property
    def evaluated(self) -> int:
        """Images of a batch that no gradient is needed of."""
        return batch_size(self.shape)

    @cached_property
    def choices(self) -> dict[str, Candidate]:
        """Blocks in place of layers, by name of the layer."""
        return {name: choice for choice in self.plan.choices for name in choice.layers}

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """Outputs of dense modules that stayed, by name of a module that got narrower."""
        if not self.plan.narrowings:
            return {}
        return staying_rows(self.start, self.dense, self.plan, self.few(PLACE_IMAGES))

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Dense layers that were compressed, by blocks or by losing inputs or outputs."""
        known = dict(self.dense.named_modules())
        narrowed = [name for name in self.rows if isinstance(known[name], nn.Conv2d | nn.Linear)]
        found, _ = find_layers(self.dense, [*self.choices, *narrowed], self.shape)
        return found

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where outputs of both networks can be compared."""
        names = [layer.name for layer in self.layers]
        return find_places(self.start, self.dense, names, self.few(PLACE_IMAGES), self.rows)

    def few(self, count: int) -> list[Tensor]:
        """Returns some images to learn from, in batches."""
        chosen = self.splits.calibration
        part = Split(chosen.images, chosen.indices[:count], chosen.role)
        return [images for images, _ in part.batches(self.evaluated)]

    @property
    def waiting(self) -> int:
        """How many images can wait at one layer."""
        return max(self.evaluated, min(MOST_IMAGES, MOST_PIXELS // (self.shape[1] * self.shape[2])))

    def identity(self, level: str) -> str:
        """Says of which training a checkpoint is."""
        told = [level, self.climbed, self.splits.summary.sha256, dict(self.inputs)]
        text = json.dumps([told, plain_options(self.options)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Attempt:
    """What a level made of a network."""

    module: nn.Module
    told: str
    """In words."""
    steps: int = 0
    """Of training."""
    changed: bool = True
    """Whether there is anything to keep."""


class _Told(Record):
    told: str
    changed: bool


def kept_attempt(memo: Memo, name: str, network: nn.Module, compute: Callable[[], Attempt]) -> Attempt:
    """Returns an attempt that is made at most once, by the first process."""
    made: list[Attempt] = []

    def make() -> Attempt:
        if not made:
            made.append(compute())
        return made[0]

    tensors = kept_tensors(memo, name, lambda: make().module.state_dict())
    told = memo.record(name, _Told, lambda: _Told(told=make().told, changed=make().changed))
    module = copy.deepcopy(network)
    module.load_state_dict(tensors)
    return Attempt(module, told.told, changed=told.changed)
