"""Networks for `bench_export.py`: architectures of torchvision whose random weights leave nothing trivial.

torchvision starts batch norms as identities and some classifiers at zero; then a converter that drops them
would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from edgecompress.nets.torchvision_compat import ensure_torchvision_importable


def _lively(name: str) -> nn.Module:
    ensure_torchvision_importable()
    from torchvision import models

    torch.manual_seed(0)
    build: Callable[[], nn.Module] = getattr(models, name)
    network = build()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.get_buffer("running_mean"), std=0.1)
            nn.init.uniform_(module.get_buffer("running_var"), 0.5, 2.0)
            nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, nn.Linear) and not bool(module.weight.any()):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return network


def resnet18() -> nn.Module:
    """Returns torchvision's ResNet-18."""
    return _lively("resnet18")


def mobilenet_v2() -> nn.Module:
    """Returns torchvision's MobileNetV2."""
    return _lively("mobilenet_v2")


def efficientnet_b0() -> nn.Module:
    """Returns torchvision's EfficientNet-B0."""
    return _lively("efficientnet_b0")


def vit_b_16() -> nn.Module:
    """Returns torchvision's ViT-B/16."""
    return _lively("vit_b_16")


def swin_t() -> nn.Module:
    """Returns torchvision's Swin-T."""
    return _lively("swin_t")
