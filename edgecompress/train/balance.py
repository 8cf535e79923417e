"""Balances the factors of low-rank chains, so that one learning rate suits all of them.

A channel between two layers may be multiplied by any number that the next layer divides by. Closed-form
factors make free use of it: the second layer can have weights a hundred times those of the first, whose
gradient is then a hundred times too long. Trained as they are, chains diverge at rates dense layers like.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import torch
from torch import Tensor, nn

from edgecompress.errors import UnsupportedLayer
from edgecompress.nets.modules import op_of


@torch.no_grad()
def balance_chains_(network: nn.Module) -> int:
    """Gives every channel between two layers of a chain weights of one length on both sides.

    Returns how many pairs of layers there are. What the network computes changes by rounding only. Channels
    without weights on one side stay, and so do chains that share layers or weights with others.
    """
    modules = list(network.modules())
    owners = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    owners += Counter(id(child) for module in modules for child in module.children())
    pairs = 0
    for chain in modules:
        if is_chain(chain) and all(owners[id(one)] == 1 for one in (*chain.children(), *chain.parameters())):
            for first, second in pairwise(chain.children()):
                _balance_(first, second)
                pairs += 1
    return pairs


def is_chain(module: nn.Module) -> bool:
    """Tells whether a module is two or more linear operators with nothing between them."""
    if type(module) is not nn.Sequential or len(module) < 2:
        return False
    try:
        return len({op_of(layer).kind for layer in module}) == 1
    except UnsupportedLayer:
        return False


def _balance_(first: nn.Module, second: nn.Module) -> None:
    made, read = first.get_parameter("weight"), second.get_parameter("weight")
    outputs, groups = read.shape[0], op_of(second).groups
    # input channels of a grouped layer are counted anew in every group of outputs
    by_group = read.double().reshape(groups, outputs // groups, read.shape[1], -1)
    lengths = made.double().flatten(1).norm(dim=1), by_group.square().sum((1, 3)).sqrt().flatten()
    usable = (lengths[0] > 0) & (lengths[1] > 0)
    factors = torch.where(usable, (lengths[1] / lengths[0]).sqrt(), 1.0)
    for parameter in first.parameters():
        parameter.copy_(parameter.double() * _along(factors, parameter.ndim))
    columns = factors.reshape(groups, 1, -1).expand(-1, outputs // groups, -1).flatten(0, 1)
    read.copy_(read.double() / columns.reshape(columns.shape + (1,) * (read.ndim - 2)))


def _along(factors: Tensor, ndim: int) -> Tensor:
    return factors.reshape(-1, *[1] * (ndim - 1))
