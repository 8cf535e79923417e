"""Batch norms as converters should translate them: one product and one sum per channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgecompress.nets.folding import exchange_, knows_statistics, scale_and_shift


class ScaleAndShift(nn.Module):
    """Computes a x + b per channel of maps (N, C, H, W)."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale.float()[:, None, None], requires_grad=False)
        self.shift = nn.Parameter(shift.float()[:, None, None], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the scaled and shifted maps."""
        return x * self.scale + self.shift


@torch.no_grad()
def write_batch_norms_plainly_(network: nn.Module) -> int:
    """Replaces the batch norms of a network in eval mode that no convolution took; returns how many.

    Converters may write a subtraction, two products and a sum for each, which all go through memory.
    """
    norms = [module for module in network.modules() if type(module) is nn.BatchNorm2d]
    replaced: dict[nn.Module, nn.Module] = {
        norm: ScaleAndShift(*scale_and_shift(norm)).eval() for norm in norms if knows_statistics(norm)
    }
    exchange_(network, replaced)
    return len(replaced)
