"""Networks pruned by the package torch-pruning, for comparison."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from edgecompress.data.splits import Split
from edgecompress.nets.profile import profile, total_macs

READERS_OF_THE_STREAM = ("q", "k", "v", "fc1", "conv1")
"""Layers of which only inner widths follow; all other layers write what blocks share."""
BISECTIONS = 8


@dataclass(frozen=True)
class Setting:
    """How torch-pruning is used."""

    everything: bool = False
    """Take all widths it can; else inner widths of blocks only, as in our groups."""
    ranked_together: bool = False
    """Compare layers of one kind; else the same share of every layer goes, which is its default."""
    round_to: int | None = None
    """Of which all widths are multiples."""


def by_torch_pruning(
    model: nn.Module, shape: tuple[int, int, int], macs: float, calibration: Split, setting: Setting
) -> nn.Module:
    """Returns the network with the nearest MACs; scores are its group Taylor importance, with labels."""
    start = with_gradients(model, calibration)
    low, high = 0.0, 0.95
    tried: list[tuple[float, nn.Module]] = []
    for _ in range(BISECTIONS):
        ratio = (low + high) / 2
        network = pruned(start, shape, ratio, setting)
        found = total_macs(profile(network, shape))
        tried.append((abs(found - macs), network))
        low, high = (ratio, high) if found > macs else (low, ratio)
    return min(tried, key=lambda one: one[0])[1]


def with_gradients(model: nn.Module, calibration: Split) -> nn.Module:
    """Returns a copy with the gradients of the loss on labels, which its scores are made of."""
    model = copy.deepcopy(model).eval().requires_grad_(True)
    for images, labels in calibration.batches(64):
        assert labels is not None  # trained networks come with labelled images
        torch.autograd.backward(F.cross_entropy(model(images), labels))
    return model


def pruned(start: nn.Module, shape: tuple[int, int, int], ratio: float, setting: Setting) -> nn.Module:
    """Returns a copy of what `with_gradients` returned, without the share `ratio` of its channels."""
    tp: Any = import_module("torch_pruning")
    network = copy.deepcopy(start)
    for own, other in zip(network.parameters(), start.parameters(), strict=True):
        own.grad = None if other.grad is None else other.grad.clone()
    layers = {n: m for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    last = list(layers.values())[-1]
    inner = [m for n, m in layers.items() if "." in n and n.rpartition(".")[2] in READERS_OF_THE_STREAM]
    heads = {
        getattr(module, part): module.heads
        for module in network.modules()
        if hasattr(module, "heads")
        for part in "qkv"
    }
    tp.pruner.BasePruner(
        network,
        torch.zeros(1, *shape),
        importance=tp.importance.GroupTaylorImportance(),
        pruning_ratio=ratio,
        global_pruning=setting.ranked_together,
        isomorphic=setting.ranked_together,
        ignored_layers=[last] if setting.everything else [one for one in layers.values() if one not in inner],
        num_heads=heads,
        round_to=setting.round_to,
    ).step()
    return network.eval()
