"""Whether ARM code computes what this machine computes: the same file, run by LiteRT on both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgecompress.devices.litert_graph import open_interpreter
from edgecompress.devices.native.emulation import Prepared
from edgecompress.devices.qemu import run_on_arm
from edgecompress.errors import ExportError

MAX_DIFFERENCE = 1e-5
"""Of floating-point outputs, relative to the largest one: kernels add up in another order."""

Array = NDArray[np.generic]


@dataclass(frozen=True)
class ArmParity:
    """How the outputs of an emulated core compare with this machine's."""

    agrees: bool
    """Integers exactly, floating-point numbers within `MAX_DIFFERENCE`."""
    max_difference: float
    """Relative to the largest output of this machine."""


def parity_on_arm(file: Path, inputs: Array, prepared: Prepared, *, timeout_s: float = 300.0) -> ArmParity:
    """Runs a file with one input and one output here and on the emulated core, and compares.

    Raises:
        ExportError: the file cannot be read or run, has other inputs, or the runs cannot be compared.
        DeviceError: qemu fails or takes too long.
        MissingPackage: LiteRT or qemu is not installed.
    """
    here = _run_here(file, inputs)
    there = np.frombuffer(run_on_arm(file, prepared, inputs.tobytes(), timeout_s=timeout_s), here.dtype)
    if there.size != here.size:
        raise ExportError(f"{file}: {there.size} outputs on ARM, {here.size} here; it cannot be compared")
    one, other = here.ravel().astype(np.float64), there.astype(np.float64)
    difference = float(np.abs(one - other).max()) / (float(np.abs(one).max()) or 1.0)
    allowed = MAX_DIFFERENCE if np.issubdtype(here.dtype, np.floating) else 0.0
    return ArmParity(agrees=difference <= allowed, max_difference=difference)


def _run_here(file: Path, inputs: Array) -> Array:
    interpreter = open_interpreter(file, threads=1)
    sources, sinks = interpreter.get_input_details(), interpreter.get_output_details()
    if len(sources) != 1 or len(sinks) != 1:
        raise ExportError(f"{file}: {len(sources)} inputs and {len(sinks)} outputs; one each is compared")
    wanted, kind = tuple(int(axis) for axis in sources[0]["shape"]), np.dtype(sources[0]["dtype"])
    if (inputs.shape, inputs.dtype) != (wanted, kind):
        raise ExportError(f"{file}: takes {kind} of shape {wanted}, not {inputs.dtype} of {inputs.shape}")
    interpreter.set_tensor(sources[0]["index"], inputs)
    interpreter.invoke()
    found: Array = interpreter.get_tensor(sinks[0]["index"])
    return found
