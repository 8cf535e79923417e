"""Writes the images that come with the package: a balanced part of Fashion-MNIST.

    python benchmarks/make_embedded_data.py --data DIR

DIR holds the four idx files (Debian: package dataset-fashion-mnist). Takes the first 200 training and the
first 300 test images of every class and keeps them in file order, so the file is the same on every run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgecompress.core.store import replacing, sha256_of
from edgecompress.data.readers.fashion_mnist import EMBEDDED
from edgecompress.data.readers.idx import read_idx

Bytes = npt.NDArray[np.uint8]

TRAIN_PER_CLASS = 200
TEST_PER_CLASS = 300


def main() -> None:
    """Writes the archive and prints its size and hash."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="directory with the idx files")
    parser.add_argument("--out", type=Path, default=EMBEDDED)
    args = parser.parse_args()
    x_train, y_train = take_first(*_load(args.data, "train"), per_class=TRAIN_PER_CLASS)
    x_test, y_test = take_first(*_load(args.data, "t10k"), per_class=TEST_PER_CLASS)
    with replacing(args.out) as file, file.open("wb") as stream:
        np.savez_compressed(stream, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    sizes = {"train": len(x_train), "test": len(x_test), "file_bytes": args.out.stat().st_size}
    print(json.dumps(sizes | {"sha256": sha256_of(args.out)}))


def _load(directory: Path, part: str) -> tuple[Bytes, Bytes]:
    images = read_idx(directory / f"{part}-images-idx3-ubyte.gz")
    return images, read_idx(directory / f"{part}-labels-idx1-ubyte.gz")


def take_first(images: Bytes, labels: Bytes, *, per_class: int) -> tuple[Bytes, Bytes]:
    """Returns the first images of every class, in the order of the file."""
    firsts = [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    chosen = np.sort(np.concatenate(firsts))
    return images[chosen], labels[chosen]


if __name__ == "__main__":
    main()
