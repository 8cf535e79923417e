"""Where images come from: a text the user types is opened by the first reader that understands it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from edgecompress.core.plugins import discover
from edgecompress.core.types import Preprocess
from edgecompress.data import readers
from edgecompress.errors import DataError


class ImageSet(Protocol):
    """Images in a fixed order, decoded when asked for."""

    @property
    def name(self) -> str:
        """Where they come from, for messages."""

    @property
    def classes(self) -> int | None:
        """Number of classes the source names; None when it gives bare indices or no labels."""

    def __len__(self) -> int: ...

    def labels(self) -> Tensor | None:
        """Returns one int64 class index per image; None: there are no labels."""

    def images(self, indices: Sequence[int]) -> Tensor:
        """Returns these images preprocessed, float32 (N, C, H, W).

        Raises:
            DataError: an image cannot be decoded.
        """


@dataclass(frozen=True)
class Source:
    """What one reader found: an official division into training and test images, or one pool."""

    name: str
    train: ImageSet | None = None
    test: ImageSet | None = None
    pool: ImageSet | None = None
    """Set when there is no division; `train` and `test` are None then."""


@dataclass(frozen=True)
class Reader:
    """One form in which images are stored."""

    name: str
    """Also the prefix that asks for this reader: `npz:path`."""
    summary: str
    matches: Callable[[str], bool]
    """Tells whether this reader understands the text; looks at names only."""
    open: Callable[[str, Preprocess], Source]
    """Opens the text (without the prefix).

    Raises:
        DataError: the files are missing or damaged.
    """
    general: bool = False
    """Asked after all others: a folder of pictures may be a more exact format as well."""


def list_readers() -> tuple[Reader, ...]:
    """Returns all readers in the order in which they are asked."""
    return tuple(sorted(discover(readers, Reader).values(), key=lambda reader: (reader.general, reader.name)))


def open_source(spec: str, preprocess: Preprocess) -> Source:
    """Opens `fashion-mnist`, a file, a directory, or `reader:path`.

    Raises:
        DataError: nothing is there, no reader understands it, or it is damaged.
    """
    _check_channels(preprocess)
    known = list_readers()
    prefix, _, rest = spec.partition(":")
    for reader in known:
        if rest and reader.name == prefix:
            return reader.open(rest, preprocess)
    for reader in known:
        if reader.matches(spec):
            return reader.open(spec, preprocess)
    found = "not recognised" if Path(spec).exists() else "there is no such file or directory"
    understood = "; ".join(f"{reader.name} ({reader.summary})" for reader in known)
    raise DataError(f"data {spec!r}: {found}; understood are: {understood}")


def _check_channels(preprocess: Preprocess) -> None:
    means, deviations = len(preprocess.mean), len(preprocess.std)
    if means != deviations or means not in (1, 3):
        raise DataError(
            f"preprocessing has {means} means and {deviations} deviations; "
            "images are grey (one of each) or RGB (three of each)"
        )


def divided(name: str, train: ImageSet | None, test: ImageSet | None) -> Source:
    """Returns a source with a division when both parts are there, else one with a pool."""
    if train is not None and test is not None:
        return Source(name, train=train, test=test)
    return Source(name, pool=train if test is None else test)
