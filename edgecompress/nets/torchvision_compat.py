"""Makes `import torchvision` work next to a torch that cannot load torchvision's compiled operators.

The package index carries torchvision only as a CUDA-linked build. Beside a CPU build of torch its
library does not load, and the import stops at two detection operators that nothing here uses.
Declaring their schemas lets the import finish; calling them still fails with torchvision's own message.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from pathlib import Path

import torch

from edgecompress.errors import MissingPackage

_NMS_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")


@functools.cache
def ensure_torchvision_importable() -> None:
    """Imports torchvision without a warning; call it before any import of torchvision or timm.

    Raises:
        MissingPackage: torchvision is not installed.
    """
    spec = importlib.util.find_spec("torchvision")  # finds the package without running it
    if spec is None or spec.origin is None:
        raise MissingPackage("torchvision is not installed; run: pip install torchvision")
    if not _load_operators(Path(spec.origin).parent):
        _declare_operators()
    with warnings.catch_warnings():  # a missing image codec warns, and no codec is used here
        warnings.simplefilter("ignore")
        importlib.import_module("torchvision")


def _load_operators(package: Path) -> bool:
    for library in sorted([*package.glob("_C*.so"), *package.glob("_C*.pyd")]):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError:  # linked against libraries this machine does not have
            continue
        return True
    return False


def _declare_operators() -> None:
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _NMS_SCHEMA)
