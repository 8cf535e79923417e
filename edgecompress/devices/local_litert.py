"""Measures TFLite files on this machine with LiteRT and XNNPACK, on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path

import numpy as np

from edgecompress.core.device import Device
from edgecompress.core.measurement import OpTime
from edgecompress.devices.contract import Driver, Options, Session
from edgecompress.devices.litert_graph import litert_module, open_interpreter, outside_delegate
from edgecompress.devices.local_runs import Ready, Runtime, open_local, random_input


def open_session(device: Device, options: Options) -> AbstractContextManager[Session]:
    """Opens a session on this machine.

    Raises:
        DeviceError: a core may not be used, or there are fewer cores than threads.
        MissingPackage: ai-edge-litert is not installed.
    """
    return open_local(runtime(), device, options)


def runtime() -> Runtime:
    """Returns LiteRT as the sessions of this machine use it.

    Raises:
        MissingPackage: ai-edge-litert is not installed.
    """
    litert_module("ai_edge_litert.interpreter")
    version = metadata.version("ai-edge-litert")
    return Runtime("litert", version, _prepare, _no_profile, (RuntimeError, ValueError))


def _prepare(file: Path, threads: int) -> Ready:
    interpreter = open_interpreter(file, threads=threads)
    for one in interpreter.get_input_details():
        shape, kind = tuple(int(axis) for axis in one["shape"]), np.dtype(one["dtype"]).name
        interpreter.set_tensor(one["index"], random_input(file, one["name"], shape, kind))
    left = outside_delegate(interpreter)
    said = ", ".join(f"{count} {kind}" for kind, count in left.items())
    return Ready(interpreter.invoke, (f"not run by XNNPACK: {said}",) if left else ())


def _no_profile(file: Path, threads: int) -> tuple[OpTime, ...]:
    """Returns nothing: LiteRT's Python interpreter has no profiler."""
    return ()


DRIVER = Driver("local-litert", "this machine, LiteRT with XNNPACK", (".tflite",), open_session)
