"""Whether a calibration of a latency table is of the network at hand, or of another one of its name."""

from __future__ import annotations

import math

from edgecompress.core.latency_table import Calibration, LatencyTable, TableDtype
from edgecompress.core.model_flags import KNOW_THEIR_INPUT, LIBRARIES, input_flags
from edgecompress.core.types import Block
from edgecompress.errors import ConfigError
from edgecompress.latency.calibration import find_calibration, weight_megabytes
from edgecompress.nets.fingerprint import fingerprint
from edgecompress.nets.modules import find_layers
from edgecompress.nets.sources import LoadedModel


def own_calibration(table: LatencyTable, loaded: LoadedModel) -> Calibration:
    """Returns the calibration of a network.

    Raises:
        ConfigError: the table has none, or one of another network of that name.
    """
    source, shape = loaded.ref.source, loaded.ref.input_shape
    found = find_calibration(table, source, shape)
    if not is_of(found, loaded, table.dtype):
        raise ConfigError(
            f"latency table of {table.device}: was calibrated for another network than {source} is now (for "
            f"{found.network} as it was then); add yours with `edgecompress latency build --device "
            f"{table.device} --model {source}{input_flags(source, shape)} -o TABLE`"
        )
    return found


def is_of(calibration: Calibration, loaded: LoadedModel, dtype: TableDtype) -> bool:
    """Tells whether a calibration that has the name of a network was fitted for it.

    The zoo and libraries have one network of each name; how many classes it has changes next to nothing.
    Tables that say no more are compared by the weights of the layers they sum.
    """
    if loaded.ref.source.startswith((*KNOW_THEIR_INPUT, *LIBRARIES)):
        return True
    if calibration.fingerprint is not None:
        return calibration.fingerprint == fingerprint(loaded.module, loaded.ref.input_shape)
    return _has_those_layers(calibration, loaded, dtype)


def _has_those_layers(calibration: Calibration, loaded: LoadedModel, dtype: TableDtype) -> bool:
    if not set(calibration.layers) <= {name for name, _ in loaded.module.named_modules()}:
        return False
    layers, _ = find_layers(loaded.module, calibration.layers, loaded.ref.input_shape)
    found = weight_megabytes((Block(branches=((layer.op,),)) for layer in layers), dtype=dtype)
    then = [one.weight_megabytes for one in calibration.timings if one.plan == "dense"]
    return all(math.isclose(found, one) for one in then)
