"""Networks of the measured Pixel 4 as TFLite files: pytorchcv's architectures through our own exporter.

Their weights are random: how long they take does not depend on them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from edgecompress.core.quiet import quiet
from edgecompress.core.store import replacing
from edgecompress.export import tflite_format, tflite_litert_torch, tflite_onnx2tf
from edgecompress.export.parity import LIMITS, Limits, check_parity, outputs
from edgecompress.nets.export_ready import export_ready
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable

SHAPE = (3, 224, 224)
CALIBRATION_IMAGES = 4
CONVERTERS = {one.CONVERTER.name: one.CONVERTER for one in (tflite_litert_torch, tflite_onnx2tf)}


def build(name: str) -> nn.Module:
    """Returns a network of pytorchcv in eval mode whose random weights keep its maps of one size."""
    ensure_torchvision_importable()
    torch.manual_seed(0)
    with quiet():
        network: nn.Module = import_module("pytorchcv.model_provider").get_model(name, pretrained=False)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # one batch decides
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        network.train()(torch.randn(2, *SHAPE))
    return network.eval()


def export_float(name: str, file: Path, converter: str) -> None:
    """Writes a network in float32 and checks that the file computes what the network computes.

    Raises:
        ExportError: it cannot be converted, or the file computes something else.
    """
    network = build(name)
    images = torch.randn(2, *SHAPE)
    expected = outputs(network, images)
    ready = export_ready(network, SHAPE)
    with replacing(file) as temporary:
        CONVERTERS[converter].convert(ready, SHAPE, temporary, False)
        check_parity(tflite_format.FORMAT, temporary, expected, images, limits=LIMITS["fp32"])


def export_int8(source: Path, file: Path) -> None:
    """Writes a float32 file in int8, calibrated on random images.

    Raises:
        ExportError: it cannot be quantised.
    """
    torch.manual_seed(1)
    images = torch.randn(CALIBRATION_IMAGES, *SHAPE)
    with replacing(file) as temporary:
        tflite_format.to_int8(source, temporary, images)
        check_parity(
            tflite_format.FORMAT,
            temporary,
            tflite_format.run(source, images),
            images,
            limits=Limits(rtol=1.0),  # only that it computes something alike
        )
