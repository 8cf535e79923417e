"""The converter to ONNX: torch's own exporter, then simplified; one file with its weights inside."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from edgecompress.core.quiet import quiet
from edgecompress.core.store import replacing
from edgecompress.errors import ExportError
from edgecompress.export.contract import Converter, Shape, check_exportable, package, reason
from edgecompress.export.failing_layer import FORWARD, layer_calling, layer_running

if TYPE_CHECKING:
    import onnx_ir
    from onnx import ModelProto

INPUT_NAME = "image"
OUTPUT_NAME = "logits"

OPSET = 20
"""Set of operators the file may use; onnxruntime reads it since 1.17."""

LARGEST_FILE_BYTES = 2**31 - 1
"""More does not fit in one protobuf message."""


def convert(model: nn.Module, input_shape: Shape, path: Path, any_batch: bool = False) -> None:
    """Writes a network as ONNX: `image` (1, C, H, W) in, `logits` (1, classes) out.

    With `any_batch` the first axis takes any length. Nodes are named after the layer they come from,
    as `features.0/conv2d`.

    Raises:
        ExportError: the network is not ready, too large for one file, or holds what ONNX cannot say.
        MissingPackage: onnx, onnxscript or onnxsim is not installed.
        ArtefactError: the file cannot be written.
    """
    onnx = package("onnx", what="ONNX")
    for name in ("onnxscript", "onnxsim"):  # asked for before the long work
        package(name, what="ONNX")
    check_exportable(model)
    _check_size(model, path)
    proto = _simplified(_converted(model, input_shape, path, any_batch=any_batch))
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"{path.name}: the converter wrote an invalid file: {reason(error)}") from None
    with replacing(path) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))


def _check_size(model: nn.Module, path: Path) -> None:
    size_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size_bytes > LARGEST_FILE_BYTES:
        raise ExportError(
            f"{path.name}: {size_bytes / 1e9:.1f} GB of weights; one ONNX file holds at most 2.1 GB, "
            "compress further"
        )


def _converted(model: nn.Module, input_shape: Shape, path: Path, *, any_batch: bool) -> ModelProto:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    images = torch.zeros(2 if any_batch else 1, *input_shape)
    axes = ({0: torch.export.Dim("batch")},) if any_batch else None
    program = None
    try:
        with quiet(), _plain_attention():
            program = torch.export.export(model, (images,), dynamic_shapes=axes)
            written = torch.onnx.export(
                program,
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except RuntimeError as error:  # what all errors of torch.export and torch.onnx derive from
        raise ExportError(f"{path.name}: {_failure(model, error, program)}") from None
    assert written is not None  # the older exporter, dynamo=False, returns none
    _name_after_layers_(written.model.graph)
    # The converter notes for every node in which line of which source file it was called: paths of
    # this machine, which do not belong in a file that is passed on.
    ClearMetadataAndDocStringPass()(written.model)
    return written.model_proto


def _name_after_layers_(graph: onnx_ir.Graph) -> None:
    """Puts the dotted name of its layer before the name of every node."""
    for node in graph:
        # the modules that were running, outermost first, and the operator of torch
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        layer = scopes[-2] if len(scopes) > 1 else ""
        bare = (node.name or node.op_type).removeprefix("node_")
        node.name = f"{layer}/{bare}" if layer else bare


def _failure(model: nn.Module, error: RuntimeError, program: torch.export.ExportedProgram | None) -> str:
    """Says which layer failed, and which operator ONNX has no word for where that is what went wrong."""
    why = reason(error)
    operator = re.search(r"op='([\w.]+)'", why)
    if operator is None or program is None:
        where = layer_running(model, error)
        return f"{where + ': ' if where else ''}cannot be converted to ONNX: {why}; rewrite that part"
    layer = layer_calling(program, operator[1]) or FORWARD
    return (
        f"{layer}: ONNX has no operator for {operator[1]!r}; "
        "replace it there by operators ONNX knows, or compute it outside of the network"
    )


def _simplified(proto: ModelProto) -> ModelProto:
    """Folds constants and drops operators without effect; keeps the original where that fails."""
    onnxsim = package("onnxsim", what="ONNX")
    try:
        with quiet():
            simpler, sound = onnxsim.simplify(proto)
    except (RuntimeError, ValueError):  # it gives up on some networks; the file is right without it
        return proto
    return cast("ModelProto", simpler) if sound else proto


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Keeps torch from running attention as one fused operator, which ONNX has no name for."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


CONVERTER = Converter(
    "torch", "torch's exporter, simplified", "onnx", ("onnx", "onnxscript", "onnxsim"), convert
)
