"""An exponential average of a network's weights, which is often better than the last ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from edgecompress.errors import ConfigError


class Average:
    """A network whose weights follow those of another.

    Early on the average is over all steps so far, so that the start is forgotten whatever the decay.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        """Starts from the network as it is.

        Raises:
            ConfigError: the decay is not a share.
        """
        if not 0 < decay < 1:
            raise ConfigError(f"--ema {decay:g}: must be above 0 and below 1")
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.decay = decay
        self.followed = 0

    @torch.no_grad()
    def follow_(self, network: nn.Module) -> None:
        """Moves towards a network by one step; whole numbers are taken over."""
        self.followed += 1
        part = 1 - min(self.decay, self.followed / (self.followed + 10))
        own: dict[str, Tensor] = self.network.state_dict()
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                own[name].lerp_(value, part)
            else:
                own[name].copy_(value)

    def state(self) -> dict[str, object]:
        """Returns what `restore_` takes."""
        return {"weights": self.network.state_dict(), "followed": self.followed}

    def restore_(self, state: dict[str, Any]) -> None:
        """Goes back to where `state` was taken."""
        self.network.load_state_dict(state["weights"])
        self.followed = state["followed"]
