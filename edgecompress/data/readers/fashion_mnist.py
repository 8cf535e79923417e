"""Fashion-MNIST: the subset that comes with the package, or the full set in a directory."""

from __future__ import annotations

from pathlib import Path

from edgecompress.core.types import Preprocess
from edgecompress.data.readers.idx import open_idx
from edgecompress.data.readers.npz import open_npz
from edgecompress.data.sources import Reader, Source

NAME = "fashion-mnist"
EMBEDDED = Path(__file__).parents[1] / "fashion_mnist.npz"
"""Written by `benchmarks/make_embedded_data.py`; the first images of every class in file order."""


def _matches(spec: str) -> bool:
    return spec == NAME


def _open(spec: str, preprocess: Preprocess) -> Source:
    if spec != NAME:
        return open_idx(spec, preprocess)
    return open_npz(str(EMBEDDED), preprocess, name=NAME)


READER = Reader(
    "fashion-mnist",
    "2,000 training and 3,000 test images that come with the package; fashion-mnist:DIR for all 70,000",
    _matches,
    _open,
)
