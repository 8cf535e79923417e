"""ONNX files: one file with its weights inside, batch norms folded, for onnxruntime and most converters."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from edgecompress.core.store import replacing
from edgecompress.errors import ExportError, MissingPackage
from edgecompress.export.contract import Exporter, check_exportable

if TYPE_CHECKING:
    from onnx import ModelProto

INPUT_NAME = "image"
OUTPUT_NAME = "logits"

OPSET = 20
"""Set of operators the file may use; onnxruntime reads it since 1.17."""

LARGEST_FILE_BYTES = 2**31 - 1
"""More does not fit in one protobuf message."""


def export(model: nn.Module, input_shape: tuple[int, int, int], path: Path) -> None:
    """Writes a network as ONNX: `image` (1, C, H, W) in, `logits` (1, classes) out.

    Raises:
        ExportError: the network is not ready, too large for one file, or holds what ONNX cannot say.
        MissingPackage: onnx or onnxscript is not installed.
        ArtefactError: the file cannot be written.
    """
    onnx = _package("onnx")
    _package("onnxscript")  # what torch.onnx.export is written in
    check_exportable(model)
    _check_size(model, path)
    proto = _converted(model, input_shape, path)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"{path.name}: the converter wrote an invalid file: {_reason(error)}") from None
    with replacing(path) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))


def run(file: Path, images: Tensor) -> Tensor:
    """Returns the first output of an ONNX file for images (N, C, H, W), by onnxruntime on the CPU.

    Raises:
        ExportError: onnxruntime cannot read the file, or it does not take such images.
        MissingPackage: onnxruntime is not installed.
    """
    runtime = _package("onnxruntime")
    if not file.is_file():
        raise ExportError(f"{file}: there is no such file; export it first")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors come as exceptions; warnings on stderr help nobody here
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        rows = [session.run(None, {name: image.numpy()})[0] for image in torch.split(images, 1)]
    except _runtime_errors() as error:
        raise ExportError(f"{file.name}: onnxruntime cannot run it: {_reason(error)}") from None
    return torch.cat([torch.from_numpy(row) for row in rows])


def _package(name: str) -> ModuleType:
    """Imports a package when it is needed: they load slowly and most commands do without."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingPackage(f"ONNX: needs {name}; run: pip install {name}") from None


def _check_size(model: nn.Module, path: Path) -> None:
    size_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size_bytes > LARGEST_FILE_BYTES:
        raise ExportError(
            f"{path.name}: {size_bytes / 1e9:.1f} GB of weights; one ONNX file holds at most 2.1 GB, "
            "compress further"
        )


def _converted(model: nn.Module, input_shape: tuple[int, int, int], path: Path) -> ModelProto:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    try:
        with _quiet(), _plain_attention():
            program = torch.onnx.export(
                model,
                (torch.zeros(1, *input_shape),),
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except RuntimeError as error:  # what all errors of torch.onnx derive from
        raise ExportError(
            f"{path.name}: cannot be converted to ONNX: {_reason(error)}; rewrite that part of the network"
        ) from None
    assert program is not None  # the older exporter, dynamo=False, returns none
    # The converter notes for every node in which line of which source file it was called: paths of
    # this machine, which do not belong in a file that is passed on.
    ClearMetadataAndDocStringPass()(program.model)
    return program.model_proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what the converter says: deprecations within torch, advice to people who extend it, and
    the graphs it prints of attempts that failed.

    Nothing is lost: `onnx.checker` and the parity check judge the file, and failures are exceptions.
    """
    said, level = io.StringIO(), logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Keeps torch from running attention as one fused operator, which ONNX has no name for."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _runtime_errors() -> tuple[type[Exception], ...]:
    """Returns what onnxruntime raises: classes of its own with no common base, and ValueError for inputs."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    errors = (value for value in vars(state).values() if isinstance(value, type))
    return (*(error for error in errors if issubclass(error, Exception)), ValueError)


def _reason(error: BaseException) -> str:
    """Returns the innermost cause, its first paragraph as one line; torch wraps it in a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = str(error).strip().partition("\n\n")[0]
    return " ".join(first.split()) or type(error).__name__


EXPORTER = Exporter("onnx", "ONNX for onnxruntime, one file, opset 20", ".onnx", export, run)
