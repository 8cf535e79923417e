"""What formats and converters are: a format is run and looked at, a converter writes it from a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from edgecompress.core.results import GraphFacts
from edgecompress.errors import ExportError, MissingPackage

Shape = tuple[int, int, int]
"""Channels, height and width of one image."""

Recode = Callable[[Path, Path, Tensor | None], None]
"""Writes the first file, in float32, as the second in another precision, whole or not at all.

The images (N, C, H, W) calibrate the ranges of activations; float16 does without.
"""


@dataclass(frozen=True)
class Format:
    """A kind of file other runtimes read. One per file of this package: `FORMAT = Format(...)`."""

    name: str
    summary: str
    suffix: str
    """Of its files, with the dot."""
    layout: str
    """Order of the input's axes: `NCHW` or `NHWC`."""
    run: Callable[[Path, Tensor], Tensor]
    """Returns what a file computes for images (N, C, H, W), fed one by one.

    Raises:
        ExportError: the file cannot be read, or does not take such images.
        MissingPackage: the runtime is not installed.
    """
    inspect: Callable[[Path], GraphFacts]
    """Counts a file's operators."""
    recode: Mapping[str, Recode]
    """By name of the precision, besides `fp32`."""


@dataclass(frozen=True)
class Converter:
    """Writes a network as a file. One per file of this package: `CONVERTER = Converter(...)`."""

    name: str
    summary: str
    format: str
    packages: tuple[str, ...]
    """Distributions it needs; `auto` passes over a converter that lacks one."""
    convert: Callable[[nn.Module, Shape, Path, bool], None]
    """Writes a float32 network in eval mode for images (C, H, W), whole or not at all.

    The files take one image at a time, as edge runtimes plan for fixed shapes; with the last
    argument true, any number.

    Raises:
        ExportError: the network cannot be converted.
        MissingPackage: the converter is not installed.
        ArtefactError: the file cannot be written.
    """


def check_exportable(model: nn.Module) -> None:
    """Does nothing for a float32 network in eval mode.

    Raises:
        ExportError: a part of it is in training mode, where dropout and batch norm compute other
            things, or has weights of another type.
    """
    training = [name or "the network" for name, module in model.named_modules() if module.training]
    if training:
        raise ExportError(f"{training[0]}: is in training mode; call .eval() on the network before exporting")
    for name, weight in model.named_parameters():
        if weight.dtype != torch.float32:
            raise ExportError(f"{name}: is {weight.dtype}; call .float() on the network before exporting")


def check_images(images: Tensor) -> None:
    """Does nothing when there is an image.

    Raises:
        ExportError: there is none.
    """
    if len(images) == 0:
        raise ExportError("no images to run the network on; give at least one")


def missing_packages(converter: Converter) -> tuple[str, ...]:
    """Returns which of the distributions a converter needs are not installed."""
    return tuple(name for name in converter.packages if not _installed(name))


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def package(name: str, *, what: str, pip: str | None = None) -> ModuleType:
    """Imports a package when it is needed: they load slowly and most commands do without.

    Raises:
        MissingPackage: it is not installed; `pip` is its name there where that differs.
    """
    try:
        return import_module(name)
    except ImportError:
        raise MissingPackage(f"{what}: needs {name}; run: pip install {pip or name}") from None


def reason(error: BaseException) -> str:
    """Returns the innermost cause, its first paragraph as one short line; libraries wrap it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = error.args[0] if isinstance(error, KeyError) and error.args else error  # str() would quote it
    first = str(said).strip().partition("\n\n")[0]
    return " ".join(first.split())[:300].rstrip(".") or type(error).__name__
