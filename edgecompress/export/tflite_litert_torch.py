"""A second converter to TFLite: straight from torch with Google's litert-torch (extra: litert-torch)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

from edgecompress.core.quiet import quiet
from edgecompress.errors import ConfigError, ExportError
from edgecompress.export.contract import Converter, Shape, check_exportable, package, reason
from edgecompress.export.tflite_signature import sign


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
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "model.tflite"
        try:
            with quiet():
                program = litert.to_channel_last_io(model, args=[0])
                litert.convert(program, (torch.zeros(1, height, width, channels),)).export(str(written))
        except (RuntimeError, ValueError, NotImplementedError, KeyError) as error:
            raise ExportError(
                f"{path.name}: litert-torch cannot convert it: {reason(error)[:300]}; "
                "replace that part of the network, or try --converter onnx2tf"
            ) from None
        sign(written, path)


CONVERTER = Converter(
    "litert-torch",
    "straight from torch (extra: litert-torch); image in NHWC",
    "tflite",
    ("litert-torch", "ai-edge-litert"),
    convert,
)
