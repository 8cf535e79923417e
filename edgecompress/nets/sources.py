"""Turns what a user types after `--model` into a network: one prefix per place models come from.

    zoo:resnet20                 a model of `edgecompress list models`
    torchvision:resnet34         any classifier of torchvision, weights not included
    timm:mobilenetv3_small_100   any network of timm (needs the timm extra), weights not included
    cells:genotype.json          a network of searched cells, as `edgecompress topology` finds them
    python:pkg.mod:factory       a function or class of an importable module, called without arguments
    path/to/file.py:factory      the same in a file; `path/to/file.py` alone means the factory `model`

A factory may return a network that already holds its weights. Every other network starts from random
weights, the same on every call, unless the zoo brings a checkpoint for it or one is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from edgecompress.core.genotype import code_of
from edgecompress.core.plugins import discover, pick
from edgecompress.core.store import sha256_of
from edgecompress.core.types import ModelRef, Preprocess, Size
from edgecompress.errors import ConfigError, ModelError
from edgecompress.nets import libraries, user_code, zoo
from edgecompress.nets.cell_networks import derived_network, read_genotype
from edgecompress.nets.consent import remember_code
from edgecompress.nets.entries import Entry
from edgecompress.nets.trial import Trial, replaceable_layers, run_once
from edgecompress.nets.weights import PICKLE_SUFFIXES, SAFETENSORS_SUFFIX, load_weights_

DEFAULT_FACTORY = "model"
"""What `path/to/file.py` without a factory calls."""

_USER_INPUT = Preprocess(size=(224, 224), resize=256)


@dataclass(frozen=True)
class LoadedModel:
    """A network ready to use, and what is known of it."""

    module: nn.Module
    """In eval mode."""
    ref: ModelRef
    targets: tuple[str, ...]
    """Names of the layers to compress: those of the papers for the zoo, else every convolution and
    linear layer but the first convolution and the classifier."""
    data: str | None
    """Data source to use when none is given."""
    random_weights: bool
    """No checkpoint was read; True only where the source cannot have brought weights of its own."""


def load_model(
    source: str,
    *,
    weights: str | Path | None = None,
    classes: int | None = None,
    input_size: Size | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> LoadedModel:
    """Builds the network `source` names, loads its weights and runs it once on a zero image.

    Options left out come from the zoo or the library. For the user's own code they are 224x224 RGB
    with ImageNet's mean and std; an input size given there resizes the short side to it, without a
    margin. A number of channels without a mean and std scales pixels to -1..1.

    Raises:
        ConfigError: the source, a name or an option is wrong.
        ModelError: the network cannot be built, or does not map one image to one row of logits.
        WeightsError: the checkpoint cannot be read or does not fit.
        MissingPackage: an extra is needed.
    """
    for what, count in (("classes", classes), ("channels", channels)):
        if count is not None and count < 1:
            raise ConfigError(f"{count} {what}: there must be at least 1")
    place = _locate(source)
    module = _build(place, classes)
    remember_code(place.source)
    preprocess = _resized(place.preprocess(module), input_size, keep_margin=not place.is_user_code)
    preprocess = _normalised(preprocess, channels, mean, std)
    checkpoint = _checkpoint(place, weights, classes)
    if checkpoint is not None:
        load_weights_(module, checkpoint)
    trial = run_once(module, preprocess, source=source)
    if classes not in (None, trial.classes):
        raise ModelError(f"{source}: returns {trial.classes} classes, not {classes}; change --classes")
    ref = ModelRef(
        source=place.source,
        weights=None if weights is None else str(Path(weights).resolve()),
        weights_sha256=None if checkpoint is None else sha256_of(checkpoint),
        classes=trial.classes,
        preprocess=preprocess,
    )
    return LoadedModel(
        module=module,
        ref=ref,
        targets=_targets(place, module, trial),
        data=place.entry.data if place.entry else None,
        random_weights=checkpoint is None and not place.is_user_code,
    )


def loaded_as(ref: ModelRef, module: nn.Module) -> LoadedModel:
    """Returns a network that is at hand, trained since perhaps, as the model of `ref`.

    Raises:
        ConfigError, ModelError, MissingPackage: as for `load_model`.
    """
    place, trial = _locate(ref.source), run_once(module, ref.preprocess, source=ref.source)
    return LoadedModel(
        module=module,
        ref=ref,
        targets=_targets(place, module, trial),
        data=place.entry.data if place.entry else None,
        random_weights=False,
    )


def build_module(ref: ModelRef, *, seed: int = 0) -> nn.Module:
    """Builds the network of `ref` in eval mode; no checkpoint is read, so the weights are random.

    Raises:
        ConfigError, ModelError, MissingPackage: as for `load_model`.
    """
    return _build(_locate(ref.source), ref.classes, seed)


@functools.cache
def zoo_entries() -> Mapping[str, Entry]:
    """Returns the models of the zoo by name."""
    return discover(zoo, Entry)


def lasting_source(source: str) -> str:
    """Returns what finds the same model from any working directory, as runs and tables name it."""
    return _locate(source).source


@dataclass(frozen=True)
class _Place:
    """A source that has been understood but not built."""

    source: str
    """Finds the same model from any working directory."""
    build: Callable[[int | None], nn.Module]
    preprocess: Callable[[nn.Module], Preprocess]
    entry: Entry | None = None
    is_user_code: bool = False


def _locate(source: str) -> _Place:
    prefix, _, name = source.partition(":")
    if prefix in _PLACES:
        return _PLACES[prefix](name)
    if match := user_code.FILE_SOURCE.fullmatch(source):
        return _file_place(Path(match["path"]).resolve(), match["factory"] or DEFAULT_FACTORY)
    raise ConfigError(_unknown_source(source))


def _zoo_place(name: str) -> _Place:
    entry = pick(zoo_entries(), name, what="zoo model")
    return _Place(
        source=f"zoo:{name}",
        build=lambda classes: entry.build(entry.classes if classes is None else classes),
        preprocess=lambda module: entry.preprocess,
        entry=entry,
    )


def _torchvision_place(name: str) -> _Place:
    return _Place(
        source=f"torchvision:{name}",
        build=lambda classes: libraries.build_torchvision(name, classes=classes),
        preprocess=lambda module: libraries.torchvision_preprocess(name),
    )


def _timm_place(name: str) -> _Place:
    return _Place(
        source=f"timm:{name}",
        build=lambda classes: libraries.build_timm(name, classes=classes),
        preprocess=libraries.timm_preprocess,
    )


def _cells_place(name: str) -> _Place:
    genotype = read_genotype(name)
    channels, height, width = genotype.image
    plus_minus_one = Preprocess(size=(height, width), mean=(0.5,) * channels, std=(0.5,) * channels)
    return _Place(
        source=f"cells:{code_of(genotype)}",  # says everything: the file may move or go
        build=lambda classes: derived_network(genotype, classes=classes),
        preprocess=lambda module: plus_minus_one,
    )


def _python_place(name: str) -> _Place:
    source, (module, _, factory) = f"python:{name}", name.partition(":")
    if not module or not factory:
        raise ConfigError(f"{source}: names no factory; write python:pkg.mod:factory")
    return _Place(
        source=source,
        build=lambda classes: user_code.build_from_module(module, factory, source=source),
        preprocess=lambda module: _USER_INPUT,
        is_user_code=True,
    )


def _file_place(path: Path, factory: str) -> _Place:
    source = f"{path}:{factory}"
    return _Place(
        source=source,
        build=lambda classes: user_code.build_from_file(path, factory, source=source),
        preprocess=lambda module: _USER_INPUT,
        is_user_code=True,
    )


_PLACES: Mapping[str, Callable[[str], _Place]] = {
    "zoo": _zoo_place,
    "torchvision": _torchvision_place,
    "timm": _timm_place,
    "cells": _cells_place,
    "python": _python_place,
}


def _unknown_source(source: str) -> str:
    known = ", ".join(f"{prefix}:" for prefix in _PLACES) + " or path/to/file.py:factory"
    if Path(source).suffix in (*PICKLE_SUFFIXES, SAFETENSORS_SUFFIX):
        return f"{source}: is a checkpoint; name the network with {known} and pass the file with --weights"
    if ":" in source:
        return f"{source}: prefix {source.partition(':')[0]!r} is not known; known are: {known}"
    for prefix, names in (("zoo", zoo_entries), ("torchvision", libraries.torchvision_names)):
        if source in names():
            return f"{source}: has no source prefix; did you mean {prefix}:{source}?"
    return f"{source}: has no source prefix; write {known}"


def _build(place: _Place, classes: int | None, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers go on as if nothing was built
        torch.manual_seed(seed)
        return place.build(classes).eval().float()  # images and exported files are float32


def _resized(base: Preprocess, size: Size | None, *, keep_margin: bool) -> Preprocess:
    if size is None or size == base.size:
        return base
    if min(size) < 1:
        raise ConfigError(f"input size {size[0]}x{size[1]}: both sides must be at least 1")
    resize = min(size)
    if keep_margin and base.resize is not None:
        resize = round(base.resize * min(size) / min(base.size))
    return base.model_copy(update={"size": size, "resize": resize})


def _normalised(
    base: Preprocess,
    channels: int | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> Preprocess:
    if channels is not None and channels != len(base.mean):
        base = base.model_copy(update={"mean": (0.5,) * channels, "std": (0.5,) * channels})
    mean, std = tuple(mean or base.mean), tuple(std or base.std)
    if not len(mean) == len(std) == (channels or len(mean)):
        wanted = "" if channels is None else f" for {channels} channels"
        raise ConfigError(f"{len(mean)} means and {len(std)} stds{wanted}; give one of each per channel")
    if min(std) <= 0:
        raise ConfigError(f"std {min(std):g}: must be greater than 0")
    return base.model_copy(update={"mean": mean, "std": std})


def _checkpoint(place: _Place, weights: str | Path | None, classes: int | None) -> Path | None:
    if weights is not None:
        return Path(weights)
    if place.entry is None or place.entry.weights is None:
        return None
    if classes not in (None, place.entry.classes):
        raise ModelError(
            f"{place.source}: its checkpoint has {place.entry.classes} classes, not {classes}; pass --weights"
        )
    return place.entry.weights()


def _targets(place: _Place, module: nn.Module, trial: Trial) -> tuple[str, ...]:
    if place.entry is None:
        return replaceable_layers(module, trial)
    is_target = place.entry.is_target
    return tuple(name for name, child in module.named_modules() if is_target(name, child))
