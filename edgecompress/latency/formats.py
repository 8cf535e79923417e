"""The files blocks and networks are measured as, by format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edgecompress.core.latency_table import TableDtype, TableFormat
from edgecompress.core.types import Block, Layer, Size
from edgecompress.latency import onnx_blocks, onnx_splice, tflite_blocks, tflite_splice


class WriteBlock(Protocol):
    """Writes one block as a network of its own."""

    def __call__(self, block: Block, in_size: Size, path: Path, dtype: TableDtype) -> None:
        """Raises ExportError where the format cannot hold it."""


class Splice(Protocol):
    """Writes a dense network's file with blocks in place of layers, to be timed only."""

    def __call__(
        self,
        dense: Path,
        changes: Sequence[tuple[Layer, Block]],
        target: Path,
        *,
        layers: Iterable[Layer],
    ) -> None:
        """`layers` are all of the network's. Raises ExportError where one is not found in the file."""


@dataclass(frozen=True)
class BlockFormat:
    """How blocks become files."""

    suffix: str
    write_block: WriteBlock
    splice: Splice


FORMATS: dict[TableFormat, BlockFormat] = {
    "tflite": BlockFormat(".tflite", tflite_blocks.write_block, tflite_splice.splice),
    "onnx": BlockFormat(".onnx", onnx_blocks.write_block, onnx_splice.splice),
}
