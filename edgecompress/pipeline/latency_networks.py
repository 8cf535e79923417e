"""Whole networks as files to be timed: the dense one is exported once, plans are spliced into it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from edgecompress import export as package
from edgecompress.core.latency_table import TableDtype, TableFormat
from edgecompress.core.plugins import discover
from edgecompress.core.types import ModelRef
from edgecompress.errors import ExportError, MissingPackage
from edgecompress.export.contract import Format
from edgecompress.nets.export_ready import export_ready
from edgecompress.pipeline.conversion import AUTO, usable_converters

_IMAGES = 4
"""Of noise, for the ranges of int8: how long a file takes does not depend on them."""


def write_network(
    module: nn.Module, ref: ModelRef, format: TableFormat, dtype: TableDtype, file: Path
) -> None:
    """Exports a network, by the first converter that can, to be timed: its outputs are not compared.

    Raises:
        ExportError: none can.
        MissingPackage: none is installed.
    """
    kind = discover(package, Format)[format]
    shape = ref.input_shape
    ready = export_ready(module, shape)
    failures = []
    for converter in usable_converters(kind, AUTO):
        try:
            converter.convert(ready, shape, file, False)
            break
        except (ExportError, MissingPackage) as error:
            failures.append(f"{converter.name}: {error}")
    else:
        raise ExportError(f"{ref.source}: cannot be exported: {'; '.join(failures)}")
    if dtype == "int8":
        noise = torch.randn(_IMAGES, *shape, generator=torch.Generator().manual_seed(0))
        kind.recode["int8"](file, file, noise)
