"""The networks of the scoreboard, their images, and where each of them is run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from edgecompress.core.latency_table import TableFormat
from edgecompress.data.splits import Split
from edgecompress.errors import ConfigError
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.nets.sources import LoadedModel, load_model
from edgecompress.pipeline.evaluate import batch_size, divergences, log_probabilities
from edgecompress.pipeline.material import ImageOptions, Material, gather

CALIBRATION, SELECTION = 448, 64
CHOOSING = 0.1
"""Share of the test images that choose between trainings; the others are reported on, trained or not."""


@dataclass(frozen=True)
class Runtime:
    """Where files run, and the table our search reads for it when no other is given."""

    device: str
    format: TableFormat
    suffix: str
    table: str = "pixel4.json"


RUNTIMES = {
    "onnxruntime": Runtime("local", "onnx", ".onnx"),
    "litert": Runtime("local", "tflite", ".tflite"),
    "pixel4-emulated": Runtime("emulated-a76", "tflite", ".tflite"),
}


@dataclass(frozen=True)
class Training:
    """A training every compressed network gets alike."""

    optimiser: str
    lr: float
    weight_decay: float
    batch_images: int
    augment: str
    norms: Literal["train", "frozen"] = "train"
    teacher_weight: float = 0.5
    """Share of the loss that is what the dense network says; the rest is on labels."""


@dataclass(frozen=True)
class Model:
    """A trained network and which options name its files."""

    source: str
    weights: str | None
    """Option with the checkpoint; None: the zoo brings it."""
    data: str
    report_data: str | None
    ours: Mapping[str, Mapping[str, Any]]
    """Searches of ours, by what rows call them; which one is shown is decided on selection images."""
    trainings: Mapping[str, Training]
    """What rows call them: for networks that are far from the dense one, and for those that are near."""
    inner: bool = True
    """Whether torch-pruning can be told which widths lie inside of blocks, by the names of layers."""


_CIFAR = {
    "sgd, norms learn": Training("sgd", 0.02, 5e-4, 128, "crop4,flip"),
    "adamw, norms frozen": Training("adamw", 5e-4, 1e-4, 64, "crop4,flip", "frozen", 0.9),
}
_IMAGENET = {
    "sgd, norms learn": Training("sgd", 0.005, 1e-5, 32, "flip"),
    "adamw, norms frozen": Training("adamw", 1e-4, 1e-4, 32, "flip", "frozen", 0.9),
}
_FASHION = {
    "adamw": Training("adamw", 5e-4, 0.01, 64, "flip"),
    "adamw, after the dense network": Training("adamw", 5e-4, 0.01, 64, "flip", teacher_weight=0.9),
}
_HYBRID = {"search": "hybrid"}
_JOINT = {"space": "joint"}
MODELS = {
    "resnet20": Model(
        "zoo:resnet20",
        "resnet20_weights",
        "cifar",
        None,
        {"low rank": _HYBRID, "widths and ranks": _JOINT},
        _CIFAR,
    ),
    "resnet56": Model(
        "zoo:resnet56",
        "resnet56_weights",
        "cifar",
        None,
        {"low rank": _HYBRID, "widths and ranks": _JOINT},
        _CIFAR,
    ),
    "efficientnet_lite0": Model(
        "zoo:efficientnet_lite0",
        None,
        "imagenet_calibration",
        "imagenet_report",
        {"low rank": {"search": "exact"}, "widths and ranks": _JOINT},
        _IMAGENET,
        inner=False,
    ),
    "fashion_vit": Model(
        "zoo:fashion_vit",
        None,
        "fashion",
        None,
        {"dimensions and ranks": _JOINT, "dimensions": {"space": "dims"}, "low rank": _HYBRID},
        _FASHION,
    ),
}


@dataclass(frozen=True)
class Scene:
    """A network with its images."""

    name: str
    model: Model
    options: argparse.Namespace
    loaded: LoadedModel
    material: Material
    kept: dict[str, Any] = field(default_factory=dict)
    """What methods have prepared, so that other positions of their knobs need not do it again."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image."""
        return self.loaded.ref.input_shape

    @property
    def weights(self) -> str | None:
        """The checkpoint that was named."""
        return None if self.model.weights is None else getattr(self.options, self.model.weights)

    @property
    def data(self) -> str:
        """Where images are."""
        return str(getattr(self.options, self.model.data))

    @cached_property
    def calibration(self) -> list[Tensor]:
        """Batches that shape weights."""
        return [images for images, _ in self.calibration_split.batches(batch_size(self.shape))]

    @property
    def calibration_split(self) -> Split:
        """The same with labels."""
        assert self.material.splits is not None  # data is always given
        return self.material.splits.calibration

    @cached_property
    def selection(self) -> list[Tensor]:
        """Batches that choose between variants."""
        assert self.material.splits is not None
        return [images for images, _ in self.material.splits.selection.batches(batch_size(self.shape))]

    @cached_property
    def answers(self) -> Tensor:
        """What the dense network says of the selection images."""
        return log_probabilities(self.loaded.module, self.selection)

    @property
    def report(self) -> Split:
        """Images that are used for nothing else."""
        return self._tested(slice(self._choosing, None))

    @property
    def choosing(self) -> Split:
        """Images that the dense network has not learnt, for choosing between trainings."""
        return self._tested(slice(self._choosing))

    def _tested(self, part: slice) -> Split:
        assert self.material.splits is not None and self.material.splits.report is not None
        whole = self.material.splits.report
        return Split(whole.images, whole.indices[part], whole.role)

    @property
    def _choosing(self) -> int:
        assert self.material.splits is not None and self.material.splits.report is not None
        return round(CHOOSING * len(self.material.splits.report))

    def distance(self, network: nn.Module) -> float:
        """Returns how far a network's answers are from the dense one's, on the selection images."""
        return float(divergences(network, self.selection, self.answers).mean())

    def sizes(self, network: nn.Module) -> dict[str, float]:
        """Returns what is left of the MACs and parameters."""
        dense = self.loaded.module
        macs, whole = (total_macs(profile(one, self.shape)) for one in (network, dense))
        return {"macs": macs / whole, "params": total_params(network) / total_params(dense)}


def open_scene(name: str, options: argparse.Namespace) -> Scene:
    """Loads a network and draws its images.

    Raises:
        ConfigError: an option that names its files is missing.
        EdgeCompressError: one of them is wrong.
    """
    model = MODELS[name]
    for option in (model.weights, model.data, model.report_data):
        if option is not None and getattr(options, option) is None:
            raise ConfigError(f"{name}: give --{option.replace('_', '-')}")
    weights = None if model.weights is None else getattr(options, model.weights)
    loaded = load_model(model.source, weights=weights)
    other = None if model.report_data is None else getattr(options, model.report_data)
    data = getattr(options, model.data)
    images = ImageOptions(data, other, CALIBRATION, SELECTION, options.report_images, options.seed)
    return Scene(name, model, options, loaded, gather(loaded, loaded.targets, images, images_needed=True))


def table_for(runtime: str, options: argparse.Namespace) -> str:
    """Returns the latency table our search reads: the one given for the runtime, or the shipped one."""
    given: dict[str, str] = dict(one.partition("=")[::2] for one in options.table)
    unknown = sorted(set(given) - set(RUNTIMES))
    if unknown:
        raise ConfigError(f"--table {unknown[0]}=...: runtimes are {', '.join(RUNTIMES)}")
    return given.get(runtime, RUNTIMES[runtime].table)


def work_folder(options: argparse.Namespace, *parts: str) -> Path:
    """Returns a folder for files of the contest, made where it is missing."""
    folder = Path(options.work, *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
