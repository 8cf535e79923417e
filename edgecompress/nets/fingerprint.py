"""Tells networks apart by what they consist of, not by their name: weights and their values do not count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from torch import nn

from edgecompress.nets.profile import profile


def fingerprint(module: nn.Module, input_shape: tuple[int, int, int]) -> str:
    """Returns a text that is equal for networks of the same modules on maps of the same sizes.

    Operators that are no modules are not seen; what they work on is, where modules make or read it.
    """
    return hashlib.sha256("\n".join(_lines(module, input_shape)).encode()).hexdigest()[:16]


def _lines(module: nn.Module, input_shape: tuple[int, int, int]) -> Iterator[str]:
    for row in profile(module, input_shape):
        if row.params:
            shapes = f"{_product(row.in_shape)} > {_product(row.out_shape)}"
            yield f"{row.name} {row.kind} {row.detail}: {row.params}, {shapes}"
    for name, child in module.named_modules():
        if next(child.children(), None) is None:
            yield f"{name} {type(child).__name__}"


def _product(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
