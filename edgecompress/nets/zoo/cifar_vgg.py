"""VGG networks (Simonyan and Zisserman, 2015) for 32x32 images, batch norm after every convolution."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from edgecompress.core.types import Preprocess
from edgecompress.nets.entries import Entry

_CIFAR_INPUT = Preprocess(size=(32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Output channels of the 13 convolutions; the map is halved after each stage."""


class CifarVgg(nn.Module):
    """Convolutional stages down to a 1x1 map of 512 channels, then the given classifier."""

    def __init__(self, features: nn.Sequential, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


def _plain_layers() -> Iterator[nn.Module]:
    inputs = 3
    for stage in _STAGES:
        for width in stage:
            yield from _conv_bn_relu(inputs, width)
            inputs = width
        yield nn.MaxPool2d(2)


def _dropout_layers() -> Iterator[nn.Module]:
    """Yields the same convolutions with dropout after each, except where pooling follows."""
    inputs = 3
    for number, stage in enumerate(_STAGES):
        for place, width in enumerate(stage, start=1):
            yield from _conv_bn_relu(inputs, width)
            inputs = width
            if place < len(stage):
                yield nn.Dropout(0.3 if number == 0 else 0.4)
        yield nn.MaxPool2d(2)


def _conv_bn_relu(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv, nn.BatchNorm2d(outputs), nn.ReLU()


def _build_vgg16(classes: int) -> nn.Module:
    return CifarVgg(nn.Sequential(*_plain_layers()), nn.Linear(512, classes))


def _build_vgg15(classes: int) -> nn.Module:
    classifier = nn.Sequential(
        nn.Dropout(0.5),
        nn.Linear(512, 512),
        nn.BatchNorm1d(512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, classes),
    )
    return CifarVgg(nn.Sequential(*_dropout_layers()), classifier)


def _is_conv_after_the_first(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and name != "features.0"


VGG16 = Entry(
    name="vgg16",
    summary="VGG-16 for CIFAR-10: 13 convolutions and one linear layer",
    build=_build_vgg16,
    classes=10,
    preprocess=_CIFAR_INPUT,
    is_target=_is_conv_after_the_first,
)

VGG15 = Entry(
    name="vgg15",
    summary="VGG-15 for CIFAR-10: 13 convolutions and two linear layers, with dropout",
    build=_build_vgg15,
    classes=10,
    preprocess=_CIFAR_INPUT,
    is_target=_is_conv_after_the_first,
)
