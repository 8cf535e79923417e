"""Milliseconds as the cost of a search: what a latency table says of a model's layers and candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgecompress.core.latency_table import Calibration, LatencyTable
from edgecompress.core.model_flags import input_flags, shape_flags
from edgecompress.core.types import Block, Candidate, Layer, Size
from edgecompress.errors import ConfigError
from edgecompress.latency.calibration import calibrations_of, sum_blocks
from edgecompress.latency.lookup import Lookup, make_lookup
from edgecompress.nets.modules import find_layers
from edgecompress.nets.sources import LoadedModel
from edgecompress.pipeline.latency_files import find_table, read_table
from edgecompress.pipeline.latency_identity import own_calibration
from edgecompress.search.contract import Costs


@dataclass(frozen=True)
class Clock:
    """A latency table for one model."""

    path: Path
    table: LatencyTable
    lookup: Lookup
    calibration: Calibration
    layers: tuple[Layer, ...]
    """Those the calibration sums, in forward order; all others are in its rest."""

    @property
    def dense_ms(self) -> float:
        """Predicted for the dense model."""
        blocks = [(Block(branches=((layer.op,),)), layer.in_size) for layer in self.layers]
        found = sum_blocks(self.lookup, blocks, dtype=self.table.dtype)
        return self.calibration.predict_ms(found.ms, found.weight_megabytes)

    def block_ms(self, block: Block, in_size: Size) -> float:
        """Returns what a block adds to the milliseconds of the model."""
        found = sum_blocks(self.lookup, [(block, in_size)], dtype=self.table.dtype)
        return self.calibration.scale * found.ms + self.calibration.per_megabyte_ms * found.weight_megabytes

    def costs(self) -> Costs:
        """Returns milliseconds as costs; each candidate is looked up once."""
        sizes = {layer.name: layer.in_size for layer in self.layers}
        known: dict[tuple[str, str, str, tuple[int, ...]], float] = {}

        def candidate_ms(one: Candidate) -> float:
            key = (one.layers[0], one.method, one.family, one.ranks)
            if key not in known:
                known[key] = self.block_ms(one.blocks[0], sizes[one.layers[0]])
            return known[key]

        def layer_ms(layer: Layer) -> float:
            return self.block_ms(Block(branches=((layer.op,),)), layer.in_size)

        return Costs("ms", self.dense_ms, candidate_ms, layer_ms)

    def corrected(self, factor: float) -> Clock:
        """Returns the clock with a calibration that says so many times as much."""
        one = self.calibration
        scaled = one.model_copy(
            update={
                "scale": factor * one.scale,
                "per_megabyte_ms": factor * one.per_megabyte_ms,
                "rest_ms": factor * one.rest_ms,
            }
        )
        return replace(self, calibration=scaled)


def clock_warnings(clock: Clock | None) -> tuple[tuple[str, str], ...]:
    """Returns what the user of a clock should know: each a subject and what is to be said of it."""
    if clock is None or not clock.calibration.is_doubtful:
        return ()
    off = f"is off by {100 * clock.calibration.fit_error:.0f} % on the networks it was fitted on"
    return (("latency table", f"{off}; build it again while the device is idle"),)


def read_clock(name: str, loaded: LoadedModel, layers: tuple[Layer, ...]) -> Clock:
    """Reads a table for a model whose `layers` are to be searched.

    Raises:
        EdgeCompressError: there is no such table, it is damaged, or it is not of this model.
    """
    path, table = find_table(name), read_table(name)
    shape = loaded.ref.input_shape
    _check_size(table, loaded)
    calibration = own_calibration(table, loaded)
    missing = [layer.name for layer in layers if layer.name not in calibration.layers]
    if missing:
        raise ConfigError(
            f"latency table {name!r}: was not calibrated with {missing[0]} of {loaded.ref.source}; build one "
            f"with `edgecompress latency build --device {table.device} --model {loaded.ref.source}"
            f"{input_flags(loaded.ref.source, shape)} --layers ... -o FILE`, with the same --layers"
        )
    summed, _ = find_layers(loaded.module, calibration.layers, shape)
    return Clock(path, table, make_lookup(table, name=name), calibration, summed)


def _check_size(table: LatencyTable, loaded: LoadedModel) -> None:
    """Raises ConfigError where a table is of this model, and of other inputs only."""
    source, shape = loaded.ref.source, loaded.ref.input_shape
    known = sorted({one.input_shape for one in calibrations_of(table, source)})
    if known and shape not in known:
        sizes = ", ".join("x".join(map(str, one)) for one in known)
        raise ConfigError(
            f"latency table of {table.device}: is of {source} with inputs of {sizes}, not "
            f"{'x'.join(map(str, shape))}; give that --input-size, or add yours with `edgecompress latency "
            f"build --device {table.device} --model {source}{shape_flags(shape)} -o TABLE`"
        )
