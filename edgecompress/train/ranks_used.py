"""How much of their rank the layers of a network use."""

from __future__ import annotations

import torch
from torch import nn

NOTICEABLE = 0.01


def ranks_used(network: nn.Module) -> tuple[tuple[str, int, int], ...]:
    """Returns name, singular values above 1 % of the largest, and all, of every layer that has a matrix.

    Kernels are read as (outputs, inputs x height x width), as in LoRITa; grouped convolutions are left out.
    """
    found = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1):
            values = torch.linalg.svdvals(module.weight.detach().flatten(1).double())
            noticeable = int((values > NOTICEABLE * values[0]).sum())
            found.append((name, noticeable, len(values)))
    return tuple(found)
