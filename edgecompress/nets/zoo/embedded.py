"""Two small networks that come with their weights, trained by `benchmarks/train_embedded.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from edgecompress.core.types import Preprocess
from edgecompress.nets.entries import Entry

FASHION_MNIST = Preprocess(size=(28, 28), mean=(0.2860,), std=(0.3530,))
"""Grey images as they are; mean and deviation of the 60,000 training images."""


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Returns a map of `outputs` channels, `stride` times smaller."""
        inner = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))
        return out


class FashionResNet(nn.Module):
    """A residual network in three stages of 16, 40 and 80 channels at 28, 14 and 7 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.stage1 = nn.Sequential(ResidualBlock(16, 16, stride=1))
        self.stage2 = nn.Sequential(ResidualBlock(16, 40, stride=2), ResidualBlock(40, 40, stride=1))
        self.stage3 = nn.Sequential(ResidualBlock(40, 80, stride=2), ResidualBlock(80, 80, stride=1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(80, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the class scores of grey images (N, 1, 28, 28)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        scores: Tensor = self.head(self.pool(x).flatten(1))
        return scores


class Attention(nn.Module):
    """Multi-head self-attention made of four linear layers that are really called.

    Every tensor has at most four dimensions and the widths are read from the layers, so a layer may
    be factored or narrowed in place. `scale` keeps the value of training: narrower queries and keys
    must not change the temperature of the softmax.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes tokens (N, tokens, width)."""
        q, k, v = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = (q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1)  # (N, heads, tokens, tokens)
        mixed: Tensor = self.proj((weights @ v).transpose(1, 2).flatten(2))
        return mixed

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)  # (N, heads, tokens, width of a head)


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps every token on its own."""
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class TransformerBlock(nn.Module):
    """Attention and MLP, each after a layer norm and added to its input."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Returns tokens of the same shape."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class FashionViT(nn.Module):
    """A vision transformer on 7x7 tokens; the head reads their mean.

    Two strided convolutions make the tokens. Cutting plain 4x4 patches is simpler but trains more slowly
    (Xiao et al., "Early convolutions help transformers see better", 2021).
    """

    def __init__(self, classes: int, *, width: int = 96, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width // 2, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width // 2),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, stride=2, padding=1),
        )
        self.pos_embed = nn.Parameter(torch.empty(1, 49, width))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, 2 * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the class scores of grey images (N, 1, 28, 28)."""
        tokens = self.stem(x).flatten(2).transpose(1, 2) + self.pos_embed
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(dim=1))
        return scores


def _is_inner_conv(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3) and name != "conv1"


def _is_block_linear(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and name.startswith("blocks.")


def _resnet_weights() -> Path:
    return Path(__file__).with_name("fashion_resnet.safetensors")


def _vit_weights() -> Path:
    return Path(__file__).with_name("fashion_vit.safetensors")


FASHION_RESNET = Entry(
    name="fashion_resnet",
    summary="residual CNN for 28x28 grey images, 0.26 M parameters; 93.80 % top-1 on the 10k test images",
    build=FashionResNet,
    classes=10,
    preprocess=FASHION_MNIST,
    is_target=_is_inner_conv,
    weights=_resnet_weights,
    data="fashion-mnist",
)

FASHION_VIT = Entry(
    name="fashion_vit",
    summary="transformer for 28x28 grey images, 0.35 M parameters; 90.99 % top-1 on the 10k test images",
    build=FashionViT,
    classes=10,
    preprocess=FASHION_MNIST,
    is_target=_is_block_linear,
    weights=_vit_weights,
    data="fashion-mnist",
)
