"""What a command must be told of a model, so that the commands we name can be run as they stand."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from edgecompress.core.types import ModelRef, Preprocess

KNOW_THEIR_INPUT = ("zoo:", "cells:")
LIBRARIES = ("torchvision:", "timm:")
USUAL = Preprocess(size=(224, 224))
USUAL_CLASSES = 1000


def input_flags(source: str, shape: tuple[int, int, int]) -> str:
    """Returns the flags of a model's input, with a space before each; none where the source knows."""
    return "" if source.startswith(KNOW_THEIR_INPUT) else shape_flags(shape)


def shape_flags(shape: tuple[int, int, int]) -> str:
    """Returns the flags of inputs of a shape, with a space before each."""
    channels, height, width = shape
    grey = "" if channels == len(USUAL.mean) else f" --channels {channels}"
    return f" --input-size {height}x{width}{grey}"


def model_flags(ref: ModelRef) -> str:
    """Returns all flags that load the same model again, with a space before each."""
    return "".join([*_weights_flag(ref), input_flags(ref.source, ref.input_shape), *_other_flags(ref)])


def _weights_flag(ref: ModelRef) -> Iterator[str]:
    if ref.weights is not None:
        yield f" --weights {shlex.quote(ref.weights)}"


def _other_flags(ref: ModelRef) -> Iterator[str]:
    if ref.source.startswith(KNOW_THEIR_INPUT):
        return
    if ref.source.startswith(LIBRARIES) and ref.classes not in (None, USUAL_CLASSES):
        yield f" --classes {ref.classes}"
    channels, own = len(ref.preprocess.mean), (ref.preprocess.mean, ref.preprocess.std)
    halves = (0.5,) * channels
    usual = (USUAL.mean, USUAL.std) if channels == len(USUAL.mean) else (halves, halves)
    if own != usual:
        yield f" --mean {_joined(own[0])} --std {_joined(own[1])}"


def _joined(values: Iterable[float]) -> str:
    return ",".join(map(str, values))
