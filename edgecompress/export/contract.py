"""What an exporter is: it writes a network as one file and can run that file to see what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from edgecompress.errors import ExportError


@dataclass(frozen=True)
class Exporter:
    """One format of exported files. Files take one image at a time: edge runtimes plan for fixed shapes."""

    name: str
    summary: str
    suffix: str
    """Of the files it writes, with the dot."""
    export: Callable[[nn.Module, tuple[int, int, int], Path], None]
    """Writes a float32 network in eval mode for images (C, H, W), whole or not at all.

    Raises:
        ExportError: the network cannot be converted.
        MissingPackage: the converter is not installed.
        ArtefactError: the file cannot be written.
    """
    run: Callable[[Path, Tensor], Tensor]
    """Returns what the file computes for images (N, C, H, W), fed one by one.

    Raises:
        ExportError: the file cannot be read, or does not take such images.
        MissingPackage: the runtime is not installed.
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
