"""What `compress` and `search` work on: a model, its images in three parts, and what to say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from edgecompress.core.costs import block_macs, block_params
from edgecompress.core.progress import Progress
from edgecompress.core.results import LayerChange, ModelSummary, SplitSummary
from edgecompress.core.types import Block, Layer, Metric, Plan
from edgecompress.data.sources import ImageSet, open_source
from edgecompress.data.splits import Split, Splits, check_labels, image_sets, make_splits, usual_counts
from edgecompress.errors import ConfigError, DataError
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import LoadedModel
from edgecompress.nets.untrained import RANDOM_WEIGHTS, has_random_weights
from edgecompress.pipeline.evaluate import accuracy, batch_size
from edgecompress.pipeline.preparation import Setting
from edgecompress.search.contract import Choices, Costs


@dataclass(frozen=True)
class ImageOptions:
    """Which images a command uses for what; None: as usual."""

    data: str | None
    report_data: str | None
    calibration: int | None
    selection: int | None
    report: int | None
    seed: int


@dataclass(frozen=True)
class Material:
    """A model, the layers to change, and images."""

    loaded: LoadedModel
    layers: tuple[Layer, ...]
    """To be compressed, in forward order."""
    unfit: tuple[tuple[str, str], ...]
    """Layers that were asked for and cannot be compressed, each with the reason."""
    splits: Splits | None
    unlabelled: str | None = None
    """Images that would have been reported on, had they labels."""

    @property
    def inputs(self) -> dict[str, str]:
        """SHA-256 of everything that was read, by its name."""
        found = {} if self.splits is None else {self.splits.summary.source: self.splits.summary.sha256}
        ref = self.loaded.ref
        if ref.weights is not None and ref.weights_sha256 is not None:
            found[ref.weights] = ref.weights_sha256
        return found

    @cached_property
    def totals(self) -> dict[Metric, float]:
        """What the whole dense model costs, from its shapes."""
        rows = profile(self.loaded.module, self.loaded.ref.input_shape)
        return {"macs": total_macs(rows), "params": total_params(self.loaded.module)}

    @property
    def split(self) -> SplitSummary | None:
        """Which images are used for what."""
        return None if self.splits is None else self.splits.summary

    def setting(self, costs: Mapping[Metric, Costs]) -> Setting:
        """Returns the model and its images as the engine takes them."""
        used = (None, None) if self.splits is None else (self.splits.calibration, self.splits.selection)
        return Setting(self.loaded.module, self.layers, costs, *(self._images(one) for one in used))

    def _images(self, split: Split | None) -> list[Tensor]:
        size = batch_size(self.loaded.ref.input_shape)
        return [] if split is None else [images for images, _ in split.batches(size)]

    def summary(self, network: nn.Module, progress: Progress, *, what: str) -> ModelSummary:
        """Returns a network in four figures, its accuracy on the report images."""
        shape = self.loaded.ref.input_shape
        rows = profile(network, shape)
        report = None if self.splits is None else self.splits.report
        return ModelSummary(
            params=total_params(network),
            macs=total_macs(rows),
            weight_bytes=sum(row.weight_bytes for row in rows),
            accuracy=None
            if report is None
            else accuracy(network, report, size=batch_size(shape), progress=progress, what=what),
        )

    def plan(self, choices: Choices, skipped: tuple[tuple[str, str], ...]) -> Plan:
        """Returns a plan of this model; `skipped` are layers no method could take."""
        ordered = tuple(choices[one.name] for one in self.layers if one.name in choices)
        return Plan(model=self.loaded.ref, choices=ordered, skipped=(*self.unfit, *skipped))

    def changes(self, choices: Choices) -> tuple[LayerChange, ...]:
        """Returns what becomes of every layer."""
        return tuple(_change(layer, choices) for layer in self.layers)

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """What a reader of the result should know."""
        found = [("weights", RANDOM_WEIGHTS)] if has_random_weights(self.loaded) else []
        if self.unlabelled is not None:
            found.append(("report", f"none, the images of {self.unlabelled} have no labels"))
        return tuple(found)


def gather(
    loaded: LoadedModel,
    names: tuple[str, ...],
    images: ImageOptions,
    *,
    images_needed: bool,
    otherwise: str = "",
) -> Material:
    """Returns a model with its layers of these names, and images.

    `otherwise` is what a command can do without images, as the end of the error.

    Raises:
        ConfigError: images are needed and there are none.
        DataError: they are too few, or are not of the model's classes.
    """
    layers, unfit = find_layers(loaded.module, names, loaded.ref.input_shape)
    splits, unlabelled = _splits(loaded, images, needed=images_needed, otherwise=otherwise)
    return Material(loaded, layers, unfit, splits, unlabelled)


def _splits(
    loaded: LoadedModel, wanted: ImageOptions, *, needed: bool, otherwise: str
) -> tuple[Splits | None, str | None]:
    """Returns the images, and which ones are not reported on because they have no labels."""
    spec = wanted.data or loaded.data
    if spec is None:
        if needed:
            raise ConfigError(f"{loaded.ref.source}: no images to calibrate with; pass --data{otherwise}")
        return None, None
    preprocess = loaded.ref.preprocess
    source = open_source(spec, preprocess)
    other = None if wanted.report_data is None else open_source(wanted.report_data, preprocess)
    usual = usual_counts(source, other)
    calibration = usual[0] if wanted.calibration is None else wanted.calibration
    if needed and calibration < 1:
        raise ConfigError(f"{calibration} calibration images: at least 1 is needed with these options")
    unlabelled = _unlabelled(image_sets(source, other)[1], wanted)
    splits = make_splits(
        source,
        calibration=calibration,
        selection=usual[1] if wanted.selection is None else wanted.selection,
        report=wanted.report if unlabelled is None else 0,
        seed=wanted.seed,
        report_source=other,
    )
    if splits.report is not None and loaded.ref.classes is not None:
        check_labels(splits.report, loaded.ref.classes)
    return splits, unlabelled


def _unlabelled(images: ImageSet, wanted: ImageOptions) -> str | None:
    """Returns the name of images to report on that have no labels, where nobody asked for a report.

    Raises:
        DataError: somebody did.
    """
    if wanted.report == 0 or images.labels() is not None:
        return None
    if wanted.report is None and wanted.report_data is None:
        return images.name
    raise DataError(
        f"{images.name}: images without labels cannot be reported on; pass --report-images 0, "
        "sort them into class folders or write labels.txt"
    )


def _change(layer: Layer, choices: Choices) -> LayerChange:
    dense = Block(branches=((layer.op,),))
    choice = choices.get(layer.name)
    block = dense if choice is None else choice.blocks[0]
    return LayerChange(
        name=layer.name,
        in_size=layer.in_size,
        family="dense" if choice is None else choice.family,
        ranks=() if choice is None else choice.ranks,
        params_before=block_params(dense),
        params_after=block_params(block),
        macs_before=block_macs(dense, layer.in_size),
        macs_after=block_macs(block, layer.in_size),
    )
