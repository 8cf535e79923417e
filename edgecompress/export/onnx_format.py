"""ONNX files: run by onnxruntime, counted, and written in other precisions."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from edgecompress.core.quiet import quiet
from edgecompress.core.results import GraphFacts
from edgecompress.core.store import replacing
from edgecompress.errors import ExportError
from edgecompress.export.contract import Format, check_images, package, reason

if TYPE_CHECKING:
    from onnx import ModelProto


def run(file: Path, images: Tensor) -> Tensor:
    """Returns the first output of an ONNX file for images (N, C, H, W), by onnxruntime on the CPU.

    Raises:
        ExportError: onnxruntime cannot read the file, or it does not take such images.
        MissingPackage: onnxruntime is not installed.
    """
    runtime = package("onnxruntime", what="ONNX")
    check_images(images)
    if not file.is_file():
        raise ExportError(f"{file}: there is no such file; export it first")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors come as exceptions; warnings on stderr help nobody here
    options.intra_op_num_threads = torch.get_num_threads()
    # The kernels for int8 come in with further optimisations. On x86 processors without VNNI they add
    # products in 16 bits, which overflow; what the file says is computed exactly without them.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        rows = [session.run(None, {name: image.numpy()})[0] for image in torch.split(images, 1)]
    except _runtime_errors() as error:
        raise ExportError(f"{file.name}: onnxruntime cannot run it: {reason(error)}") from None
    return torch.cat([torch.from_numpy(row) for row in rows])


def inspect(file: Path) -> GraphFacts:
    """Counts the operators of an ONNX file; onnxruntime's CPU provider runs all of them itself.

    Raises:
        ExportError: it is missing or not an ONNX file.
    """
    onnx = package("onnx", what="ONNX")
    graph = _loaded(file).graph
    first = graph.input[0].type.tensor_type
    kinds = Counter(node.op_type for node in graph.node)
    try:
        return GraphFacts(
            operators=dict(sorted(kinds.items())),
            transposes=kinds["Transpose"],
            outside_delegate=None,
            input_shape=tuple(axis.dim_value for axis in first.shape.dim),
            input_type=str(onnx.helper.tensor_dtype_to_np_dtype(first.elem_type)),
        )
    except (KeyError, TypeError, ValueError):  # names that are no text, types that are none
        raise ExportError(f"{file.name}: {_NOT_ONNX}") from None


_NOT_ONNX = "not an ONNX file, or a part is missing; export it again"


def _loaded(file: Path) -> ModelProto:
    onnx = package("onnx", what="ONNX")
    decode_error = package("google.protobuf.message", what="ONNX", pip="protobuf").DecodeError
    try:
        proto = cast("ModelProto", onnx.load(file, load_external_data=False))
    except FileNotFoundError:
        raise ExportError(f"{file}: there is no such file; export it first") from None
    except OSError as error:
        raise ExportError(f"{file}: cannot be read: {error.strerror or error}") from None
    except decode_error:
        proto = None
    if proto is None or not proto.graph.input:  # an empty file decodes, to nothing
        raise ExportError(f"{file.name}: {_NOT_ONNX}")
    return proto


def to_fp16(source: Path, target: Path, images: Tensor | None = None) -> None:
    """Writes weights and arithmetic in float16; input and output stay float32.

    Raises:
        ExportError: the file cannot be read.
    """
    convert = package("onnxruntime.transformers.float16", what="ONNX", pip="onnxruntime")
    with quiet():
        proto = convert.convert_float_to_float16(_loaded(source), keep_io_types=True)
    with replacing(target) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))


def to_int8(source: Path, target: Path, images: Tensor | None) -> None:
    """Writes int8 weights per channel and int8 activations, calibrated on images (N, C, H, W).

    Raises:
        ExportError: the file cannot be read or quantised, or there are no images.
    """
    assert images is not None  # the pipeline refuses int8 without images
    check_images(images)
    quantization = package("onnxruntime.quantization", what="ONNX int8", pip="onnxruntime")
    name = _loaded(source).graph.input[0].name
    with tempfile.TemporaryDirectory() as directory, replacing(target) as temporary, quiet():
        prepared = Path(directory) / "prepared.onnx"
        try:
            quantization.quant_pre_process(source, prepared, skip_symbolic_shape=True)
            quantization.quantize_static(
                prepared,
                temporary,
                _reader(quantization, name, images),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QInt8,
                weight_type=quantization.QuantType.QInt8,
                extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
            )
        except _runtime_errors() as error:
            raise ExportError(f"{target.name}: cannot be quantised: {reason(error)}") from None


def _reader(quantization: Any, name: str, images: Tensor) -> Any:  # noqa: ANN401  untyped package
    """Returns the images one by one in the shape of the class onnxruntime asks for."""
    rows: Iterator[dict[str, np.ndarray[Any, Any]]] = (
        {name: image.numpy()} for image in torch.split(images, 1)
    )
    return type("Reader", (quantization.CalibrationDataReader,), {"get_next": lambda _: next(rows, None)})()


def _runtime_errors() -> tuple[type[Exception], ...]:
    """Returns what onnxruntime raises: classes of its own with no common base, and two of Python's."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    errors = (value for value in vars(state).values() if isinstance(value, type))
    return (*(error for error in errors if issubclass(error, Exception)), ValueError, RuntimeError)


FORMAT = Format(
    "onnx",
    "ONNX for onnxruntime, one file, opset 20",
    ".onnx",
    "NCHW",
    run,
    inspect,
    {"fp16": to_fp16, "int8": to_int8},
)
