"""What an optimiser is, what it can be told, and which parameters it decays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import ParametrizationList

from edgecompress.errors import ConfigError
from edgecompress.train.radius_schedules import parse_radius
from edgecompress.train.timing import parse_timing


@dataclass(frozen=True)
class OptimiserSettings:
    """What optimisers can be told. One that cannot use a setting refuses it.

    Raises:
        ConfigError: a number is out of range or a text is not understood.
    """

    lr: float = 0.1
    momentum: float = 0.9
    """Of Adam, the first of its two decay rates."""
    weight_decay: float = 5e-4
    nesterov: bool = False
    radius: str | None = None
    """How far weights are perturbed, as `radius_schedules` reads it; None: as is usual for the optimiser."""
    scale: str | None = None
    """`pugd`: weight of the gradient at the unperturbed weights, that of the other being 1; None: 1."""
    timing: str = "none"
    """When perturbation begins, as `timing` reads it; none: with the first step."""

    def __post_init__(self) -> None:
        for name, below in (("lr", math.inf), ("momentum", 1.0), ("weight_decay", math.inf)):
            value = getattr(self, name)
            if not 0 <= value < below:
                limit = "" if below == math.inf else f" and below {below:g}"
                raise ConfigError(f"{name} {value!r} of an optimiser: must be 0 or more{limit}")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov needs momentum; give --momentum 0.9, say")
        for name in ("radius", "scale"):
            _check_schedule(name, getattr(self, name))
        parse_timing(self.timing)


def _check_schedule(name: str, text: str | None) -> None:
    try:
        parse_radius("0" if text is None else text)
    except ConfigError as error:
        raise ConfigError(f"--{name} {error}") from None


@dataclass(frozen=True)
class Optimiser:
    """A way to turn gradients into steps: one file of `train/optimisers/`."""

    name: str
    summary: str
    make: Callable[[nn.Module, OptimiserSettings], torch.optim.Optimizer]
    """Returns the optimiser of a network's parameters. Its `step` takes a closure that zeroes gradients, runs
    the network forward and backward and returns the loss; gradients are whole when the closure returns.

    Raises ConfigError where a setting is not the optimiser's."""
    passes: int
    """How often a step at full work calls the closure."""


@runtime_checkable
class FollowsTraining(Protocol):
    """An optimiser that wants to know how far training is."""

    def set_progress(self, epoch: float, epochs: int) -> None:
        """Is called before every epoch, counted from 0; before every step with parts of epochs, if liked."""

    def observe_epoch(self, train_loss: float, validation_loss: float | None) -> None:
        """Is called after every epoch, by all processes with the same losses."""


def begin_epoch(optimizer: torch.optim.Optimizer, epoch: float, epochs: int) -> None:
    """Tells an optimiser that an epoch, counted from 0, begins; torch's own do not care."""
    if isinstance(optimizer, FollowsTraining):
        optimizer.set_progress(epoch, epochs)


def end_epoch(optimizer: torch.optim.Optimizer, train_loss: float, validation_loss: float | None) -> None:
    """Tells an optimiser how an epoch went; torch's own do not care."""
    if isinstance(optimizer, FollowsTraining):
        optimizer.observe_epoch(train_loss, validation_loss)


def refuse(settings: OptimiserSettings, name: str, *fields: str) -> None:
    """Does nothing where these settings are as they are by default.

    Raises:
        ConfigError: one was given to an optimiser that has no use for it.
    """
    usual = OptimiserSettings()
    for field in fields:
        if getattr(settings, field) != getattr(usual, field):
            raise ConfigError(f"optimiser {name!r} has no {field}; leave it out or choose another optimiser")


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns all parameters in two groups: those that decay, and the rest, which does not.

    Weights of convolutions and linear layers decay, or the factors they are made of. Biases, scales and
    shifts of norms, embeddings and tokens do not. Empty groups are left out.
    """
    decayed = dict.fromkeys(_weights(network))
    others = [each for each in network.parameters() if each not in decayed]
    groups = ((list(decayed), weight_decay), (others, 0.0))
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def _weights(network: nn.Module) -> Iterator[nn.Parameter]:
    for module in network.modules():
        if _holds_weights(module):
            own = module.named_parameters(recurse=False)
            yield from (each for name, each in own if each.ndim > 1 and "bias" not in name)


def _holds_weights(module: nn.Module) -> bool:
    # weights that are parametrised, as products are, lie one module further down
    return isinstance(module, _ConvNd | nn.Linear | nn.MultiheadAttention | ParametrizationList)
