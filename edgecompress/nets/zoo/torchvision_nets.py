"""ImageNet networks as torchvision defines them; the checkpoint is the user's.

Each resizes and interpolates as torchvision does for the first weights published with the network.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from torch import nn

from edgecompress.core.types import Preprocess
from edgecompress.nets.entries import Entry
from edgecompress.nets.torchvision_compat import ensure_torchvision_importable

_BILINEAR = Preprocess(size=(224, 224), resize=256)
_BICUBIC = Preprocess(size=(224, 224), resize=256, interpolation="bicubic")
_SWIN_BICUBIC = Preprocess(size=(224, 224), resize=232, interpolation="bicubic")


def _build(classes: int, *, name: str) -> nn.Module:
    ensure_torchvision_importable()
    from torchvision.models import get_model

    network: nn.Module = get_model(name, weights=None, num_classes=classes)
    return network


def _entry(
    name: str, summary: str, preprocess: Preprocess, is_target: Callable[[str, nn.Module], bool]
) -> Entry:
    build = functools.partial(_build, name=name)
    return Entry(name, summary, build, classes=1000, preprocess=preprocess, is_target=is_target)


def _is_3x3(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3)


def _is_conv_of_a_block(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and name != "conv1" and ".downsample." not in name


def _is_pointwise(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)


def _is_pointwise_outside_squeeze_excite(name: str, module: nn.Module) -> bool:
    return _is_pointwise(name, module) and re.search(r"\.fc[12]$", name) is None


def _is_mlp_linear(name: str, module: nn.Module) -> bool:
    # torchvision's attention reads the weights of its linear layers without calling them,
    # so nothing can stand in their place
    return isinstance(module, nn.Linear) and ".mlp." in name


RESNET18 = _entry("resnet18", "ResNet-18 for ImageNet; its 3x3 convolutions", _BILINEAR, _is_3x3)
RESNET50 = _entry(
    "resnet50", "ResNet-50 for ImageNet; its block convolutions", _BILINEAR, _is_conv_of_a_block
)
MOBILENET_V2 = _entry(
    "mobilenet_v2", "MobileNetV2 for ImageNet; its 1x1 convolutions", _BILINEAR, _is_pointwise
)
EFFICIENTNET_B0 = _entry(
    "efficientnet_b0",
    "EfficientNet-B0 for ImageNet; its 1x1 convolutions outside squeeze-excite",
    _BICUBIC,
    _is_pointwise_outside_squeeze_excite,
)
SWIN_T = _entry("swin_t", "Swin-T for ImageNet; the linear layers of its MLPs", _SWIN_BICUBIC, _is_mlp_linear)
VIT_B_16 = _entry(
    "vit_b_16", "ViT-B/16 for ImageNet; the linear layers of its MLPs", _BILINEAR, _is_mlp_linear
)
