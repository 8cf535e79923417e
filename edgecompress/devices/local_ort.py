"""Measures ONNX files on this machine with onnxruntime, on the CPU."""

from __future__ import annotations

import functools
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from edgecompress.core.device import Device
from edgecompress.core.measurement import OpTime
from edgecompress.core.quiet import quiet
from edgecompress.devices.contract import Driver, Options, Session
from edgecompress.devices.local_runs import Ready, Runtime, open_local, random_input
from edgecompress.errors import ExportError, MissingPackage

_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
}
_FATAL = 4
"""Severity from which onnxruntime logs by itself; what matters comes as exceptions."""

_PROFILED_RUNS = 30
_WARM_RUNS = 5
"""The first runs allocate memory; they are profiled too, and left out."""


def open_session(device: Device, options: Options) -> AbstractContextManager[Session]:
    """Opens a session on this machine.

    Raises:
        DeviceError: a core may not be used, or there are fewer cores than threads.
        MissingPackage: onnxruntime is not installed.
    """
    return open_local(runtime(), device, options)


def runtime() -> Runtime:
    """Returns onnxruntime as the sessions of this machine use it.

    Raises:
        MissingPackage: onnxruntime is not installed.
    """
    return Runtime("onnxruntime", _onnxruntime().__version__, _prepare, _profile, _failures())


@functools.cache
def _onnxruntime() -> ModuleType:
    try:
        with quiet():  # it complains at once where it finds no graphics card
            return import_module("onnxruntime")
    except ImportError:
        raise MissingPackage("ONNX: needs onnxruntime; run: pip install onnxruntime") from None


def _failures() -> tuple[type[Exception], ...]:
    """Returns what onnxruntime raises: classes with no base of their own."""
    state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    errors = [one for one in vars(state).values() if isinstance(one, type) and issubclass(one, Exception)]
    return (*errors, ValueError, RuntimeError)


def _prepare(file: Path, threads: int) -> Ready:
    session = _inference_session(file, _session_options(threads))
    return Ready(_bound(session, file))


def _session_options(threads: int) -> Any:  # noqa: ANN401  untyped package
    package = _onnxruntime()
    options = package.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = package.ExecutionMode.ORT_SEQUENTIAL
    # Waiting threads would burn the core another file or program is measured on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _inference_session(file: Path, options: Any) -> Any:  # noqa: ANN401  untyped package
    if not file.is_file():
        raise ExportError(f"{file}: there is no such file; export it first")
    try:
        with quiet():
            return _onnxruntime().InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except _failures() as error:
        raise ExportError(f"{file}: onnxruntime cannot read it: {' '.join(str(error).split())}") from None


def _bound(session: Any, file: Path) -> Any:  # noqa: ANN401  untyped package
    """Returns a function that runs a file on inputs that are in place; free axes have length 1."""
    binding = session.io_binding()
    for one in session.get_inputs():
        shape = tuple(axis if isinstance(axis, int) and axis > 0 else 1 for axis in one.shape)
        kind = _TYPES.get(one.type, one.type)
        binding.bind_cpu_input(one.name, random_input(file, one.name, shape, kind))
    for one in session.get_outputs():
        binding.bind_output(one.name)
    return lambda: session.run_with_iobinding(binding)


def _profile(file: Path, threads: int) -> tuple[OpTime, ...]:
    with tempfile.TemporaryDirectory() as directory:
        options = _session_options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(directory) / "profile")
        session = _inference_session(file, options)
        run = _bound(session, file)
        for _ in range(_WARM_RUNS + _PROFILED_RUNS):
            run()
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return tuple(_op_times(events))


def _op_times(events: list[dict[str, Any]]) -> Iterator[OpTime]:
    """Yields the time of every node, in the order they run."""
    durations_us: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name = event["name"].removesuffix("_kernel_time")
            durations_us[name, event["args"]["op_name"]].append(event["dur"])
    for (name, kind), taken_us in durations_us.items():
        per_run = np.array_split(np.array(taken_us), _WARM_RUNS + _PROFILED_RUNS)[_WARM_RUNS:]
        mean_us = _trimmed_mean([float(one.sum()) for one in per_run])
        yield OpTime(name=name, kind=kind, mean_ms=mean_us / 1e3, calls=max(len(one) for one in per_run))


def _trimmed_mean(values: list[float]) -> float:
    """Leaves out the highest and lowest fifth: one interruption would be many times a node's own time."""
    cut = len(values) // 5
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


DRIVER = Driver("local-ort", "this machine, onnxruntime", (".onnx",), open_session)
