"""Networks to export: one with every kind of block, one that does something on the way, and what they say."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from edgecompress import methods
from edgecompress.core.plugins import discover
from edgecompress.core.quiet import quiet
from edgecompress.core.types import Block, Layer
from edgecompress.errors import EdgeCompressError
from edgecompress.methods.contract import Method
from edgecompress.nets.modules import block_module, op_of

SHAPE = (3, 8, 8)
CLASSES = 5


class Added(nn.Module):
    """A block with its batch norm, added to its input."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.norm = unlike_identity(nn.BatchNorm2d(8))

    def forward(self, x):
        return torch.relu(x + self.norm(self.block(x)))


class Doing(nn.Module):
    """A network with a layer, `stage.1`, that does something to its image on the way."""

    def __init__(self, something) -> None:
        super().__init__()
        self.stage = nn.Sequential(nn.ReLU(), Step(something))
        self.head = nn.Linear(3, 2)
        self.eval()

    def forward(self, x):
        return self.head(self.stage(x).mean((2, 3)))


class Step(nn.Module):
    def __init__(self, something) -> None:
        super().__init__()
        self.something = something

    def forward(self, x):
        return self.something(x)


def pass_on(x):
    return x


def singular_vectors(x):
    return torch.linalg.svd(x).U


def spectrum(x):
    return torch.fft.rfft2(x).abs()


def turn_dark_images(x):
    return x if x.sum() > 0 else -x


def every_family(dense: nn.Module, in_size: tuple[int, int]) -> dict[str, Block]:
    """One block of every family of every method that could replace this layer."""
    layer = Layer(name="layer", op=op_of(dense), in_size=in_size)
    return {c.family: c.blocks[0] for m in discover(methods, Method).values() for c in m.candidates(layer)}


def compressed_network() -> nn.Sequential:
    """Blocks of every family one after the other, one of two branches, and what surrounds them."""
    torch.manual_seed(0)
    convs = every_family(nn.Conv2d(8, 8, 3, padding=1, bias=False), (8, 8))
    linears = every_family(nn.Linear(8, 8), (1, 1))
    assert {"S2", "S2T", "S4(2)", "S5(4)", "tucker2"} <= convs.keys() and linears
    both = Block(branches=convs["S2"].branches + convs["S4(2)"].branches)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU6(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *(Added(block_module(block)) for block in (*convs.values(), both)),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *(block_module(block) for block in linears.values()),
        nn.Dropout(),
        nn.Linear(8, CLASSES),
    )
    keep_scale_(network)
    return network.eval()


def small_network() -> nn.Sequential:
    """A network that converts in a second, with a low-rank pair in it."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        unlike_identity(nn.BatchNorm2d(8)),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(8, 4, 3, padding=1, bias=False), nn.Conv2d(4, 8, 1)),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    keep_scale_(network)
    return network.eval()


def keep_scale_(network: nn.Module) -> None:
    """Sets weights so that what the first layers do is still seen in the output."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)


def unlike_identity(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


def images(count: int = 6, shape: tuple[int, int, int] = SHAPE, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def noise_of(call: Callable[[], object]) -> str:
    """Returns all that a call writes, warns and logs; for fixtures, which cannot use capfd."""
    with quiet() as said, warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.disable(logging.NOTSET)
        handler = logging.StreamHandler(sys.stderr)
        logging.root.addHandler(handler)
        try:
            call()
        finally:
            logging.root.removeHandler(handler)
        return said()


def check_one_line(error: pytest.ExceptionInfo[EdgeCompressError], *parts: str) -> None:
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)
