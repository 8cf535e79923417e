"""A second converter to TFLite: straight from torch with Google's litert-torch (extra: litert-torch)."""

from __future__ import annotations

import copy
import re
import tempfile
from pathlib import Path

import torch
from torch import nn

from edgecompress.core.quiet import quiet
from edgecompress.errors import ConfigError, ExportError
from edgecompress.export.contract import Converter, Shape, check_exportable, package, reason
from edgecompress.export.failing_layer import layer_calling, layer_running
from edgecompress.export.tflite_signature import sign
from edgecompress.nets.large_depthwise import split_large_depthwise_
from edgecompress.nets.plain_layers import write_batch_norms_plainly_

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What its compilers, of three projects, raise for networks they were not made for."""


def convert(model: nn.Module, input_shape: Shape, path: Path, any_batch: bool = False) -> None:
    """Writes a network as TFLite: `image` (1, H, W, C) in, `logits` (1, classes) out.

    Raises:
        ExportError: a part of the network cannot be converted.
        ConfigError: `any_batch` is asked for.
        MissingPackage: litert-torch is not installed.
        ArtefactError: the file cannot be written.
    """
    if any_batch:
        raise ConfigError(
            "--dynamic-batch: TFLite files take a fixed number of images; use it with --onnx only"
        )
    check_exportable(model)
    with quiet():  # it greets, counts seconds and repeats its dependencies' warnings
        litert = package("litert_torch", what="converter litert-torch", pip="'edgecompress[litert-torch]'")
    channels, height, width = input_shape
    image = torch.zeros(1, height, width, channels)
    model = copy.deepcopy(model)
    write_batch_norms_plainly_(model)
    split_large_depthwise_(model)
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "model.tflite"
        try:
            with quiet():
                program = litert.to_channel_last_io(model, args=[0])
                litert.convert(program, (image,)).export(str(written))
        except _FAILURES as error:
            raise ExportError(f"{path.name}: {_failure(model, error, image)}") from None
        sign(written, path)


def _failure(model: nn.Module, error: Exception, image: torch.Tensor) -> str:
    """Says which layer it gave up on, and on which operator where it tells."""
    named = re.search(r"target=torch\.ops\.(\w+\.\w+)", str(error))
    if named is None:
        layer, operator = layer_running(model, error), "it"
    else:
        with quiet():
            program = torch.export.export(model, (image.movedim(-1, 1),))
        layer, operator = layer_calling(program, named[1]), f"the operator {named[1]!r}"
    return (
        f"{layer + ': ' if layer else ''}litert-torch cannot convert {operator}: {reason(error)}; "
        "replace it in the network, or try --converter onnx2tf"
    )


CONVERTER = Converter(
    "litert-torch",
    "straight from torch (extra: litert-torch); image in NHWC",
    "tflite",
    ("litert-torch", "ai-edge-litert"),
    convert,
)
