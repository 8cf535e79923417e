"""Whether a network has random weights: then it costs what it costs, and its answers mean nothing."""

from __future__ import annotations

import torch
from torch import nn

from edgecompress.nets.sources import LoadedModel, build_module

RANDOM_WEIGHTS = "random, as no checkpoint was given: costs are real, accuracy means nothing; pass --weights"


def has_random_weights(loaded: LoadedModel) -> bool:
    """Tells whether no weights were read, neither from a checkpoint nor by the user's own code.

    Code that brings its weights builds the same network from every seed; other code does not. A network
    that was changed since it was built is not random any more.

    Raises:
        ConfigError, ModelError, MissingPackage: as for `load_model`.
    """
    if loaded.random_weights or loaded.ref.weights_sha256 is not None:
        return loaded.random_weights
    if _share_alike(loaded.module, build_module(loaded.ref, seed=1)) > 0.5:
        return False
    return _share_alike(loaded.module, build_module(loaded.ref)) == 1


def _share_alike(one: nn.Module, other: nn.Module) -> float:
    """Returns the share of values two networks have in common; biases and norms start alike, so not those."""
    theirs = dict(other.named_parameters())
    pairs = [(mine, theirs.get(name)) for name, mine in one.named_parameters() if mine.ndim > 1]
    alike = sum(
        int(torch.eq(mine, its).sum()) for mine, its in pairs if its is not None and mine.shape == its.shape
    )
    return alike / max(sum(mine.numel() for mine, _ in pairs), 1)
