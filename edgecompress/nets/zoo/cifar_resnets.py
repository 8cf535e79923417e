"""Residual networks for 32x32 images (He et al., 2016): ResNet-20 to 110 and pre-activation ResNet-164."""

from __future__ import annotations

import functools

import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.types import Preprocess
from edgecompress.nets.entries import Entry

_PUBLISHED_INPUT = Preprocess(size=(32, 32))
"""ImageNet's mean and std: the published CIFAR-10 checkpoints of these networks were trained with them."""

_CIFAR_INPUT = Preprocess(size=(32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))

_STAGE_WIDTHS = (16, 32, 64)


class PaddedSubsample(nn.Module):
    """Shortcut without weights ("option A"): every second pixel, new channels filled with zeros.

    Half of the new channels go before the old ones and half after.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Returns the map the block's output is added to."""
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each with batch norm, and a shortcut without weights."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else PaddedSubsample(inputs, outputs, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Returns relu(residual + shortcut)."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """A stem, three stages of basic blocks with 16, 32 and 64 channels, and a linear classifier."""

    def __init__(self, blocks_per_stage: int, *, classes: int) -> None:
        super().__init__()
        stem = _STAGE_WIDTHS[0]
        self.conv1 = nn.Conv2d(3, stem, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.layer1 = _basic_stage(stem, _STAGE_WIDTHS[0], blocks_per_stage, stride=1)
        self.layer2 = _basic_stage(_STAGE_WIDTHS[0], _STAGE_WIDTHS[1], blocks_per_stage, stride=2)
        self.layer3 = _basic_stage(_STAGE_WIDTHS[1], _STAGE_WIDTHS[2], blocks_per_stage, stride=2)
        self.linear = nn.Linear(_STAGE_WIDTHS[2], classes)
        _init_convs_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def _basic_stage(inputs: int, outputs: int, blocks: int, *, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride=stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, stride=1) for _ in range(blocks - 1)))


class PreActBottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each after its batch norm and relu; four times wider outside."""

    expansion = 4

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        same = stride == 1 and inputs == outputs
        self.downsample = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns residual + shortcut; the next block's batch norm and relu come after the sum."""
        y = self.conv1(F.relu(self.bn1(x)))
        y = self.conv2(F.relu(self.bn2(y)))
        y = self.conv3(F.relu(self.bn3(y)))
        total: Tensor = y + self.downsample(x)
        return total


class PreActResNet(nn.Module):
    """A stem, three stages of pre-activation bottlenecks, a last batch norm and a linear classifier."""

    def __init__(self, blocks_per_stage: int, *, classes: int) -> None:
        super().__init__()
        wide = [width * PreActBottleneck.expansion for width in _STAGE_WIDTHS]
        self.conv1 = nn.Conv2d(3, _STAGE_WIDTHS[0], 3, 1, 1, bias=False)
        self.layer1 = _bottleneck_stage(_STAGE_WIDTHS[0], _STAGE_WIDTHS[0], blocks_per_stage, stride=1)
        self.layer2 = _bottleneck_stage(wide[0], _STAGE_WIDTHS[1], blocks_per_stage, stride=2)
        self.layer3 = _bottleneck_stage(wide[1], _STAGE_WIDTHS[2], blocks_per_stage, stride=2)
        self.bn = nn.BatchNorm2d(wide[2])
        self.linear = nn.Linear(wide[2], classes)
        _init_convs_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        x = F.relu(self.bn(x))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def _bottleneck_stage(inputs: int, width: int, blocks: int, *, stride: int) -> nn.Sequential:
    outputs = width * PreActBottleneck.expansion
    first = PreActBottleneck(inputs, width, stride=stride)
    return nn.Sequential(first, *(PreActBottleneck(outputs, width, stride=1) for _ in range(blocks - 1)))


def _init_convs_(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _is_3x3_after_the_stem(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3) and name != "conv1"


def _is_conv_of_a_block(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and name != "conv1" and not name.endswith("downsample")


def _build_resnet(classes: int, *, blocks_per_stage: int) -> nn.Module:
    return CifarResNet(blocks_per_stage, classes=classes)


def _build_preresnet(classes: int, *, blocks_per_stage: int) -> nn.Module:
    return PreActResNet(blocks_per_stage, classes=classes)


def _resnet(depth: int) -> Entry:
    return Entry(
        name=f"resnet{depth}",
        summary=f"ResNet-{depth} for CIFAR-10, shortcuts without weights",
        # two convolutions a block, three stages, a stem and a classifier
        build=functools.partial(_build_resnet, blocks_per_stage=(depth - 2) // 6),
        classes=10,
        preprocess=_PUBLISHED_INPUT,
        is_target=_is_3x3_after_the_stem,
    )


RESNET20 = _resnet(20)
RESNET32 = _resnet(32)
RESNET44 = _resnet(44)
RESNET56 = _resnet(56)
RESNET110 = _resnet(110)

PRERESNET164 = Entry(
    name="preresnet164",
    summary="pre-activation ResNet-164 with bottlenecks for CIFAR-10",
    build=functools.partial(_build_preresnet, blocks_per_stage=18),
    classes=10,
    preprocess=_CIFAR_INPUT,
    is_target=_is_conv_of_a_block,
)
