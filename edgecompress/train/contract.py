"""What a way to train a network is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from edgecompress.core.types import Candidate


@dataclass(frozen=True)
class Batch:
    """The images of one step that this process sees."""

    images: Tensor
    labels: Tensor | None
    whole: int
    """How many images all processes see in this step together."""
    step: int
    """From 0; with the seed it is all that chance may depend on, so that a run can go on after a kill."""


Objective = Callable[[nn.Module, Batch], Tensor]
"""Runs a network on a batch and returns the loss, *summed* over its images."""


def backward_once(network: nn.Module, objective: Objective, batch: Batch) -> Tensor:
    """Adds the gradient of the mean loss to `.grad` and returns this process's part of the mean loss."""
    loss = objective(network, batch) / batch.whole
    torch.autograd.backward(loss)
    return loss.detach()


def _nothing(step: int) -> None:
    pass


@dataclass(frozen=True)
class Course:
    """A network being trained by one method.

    The loop zeroes gradients, calls `backward`, adds gradients up over processes, takes a step of the
    optimiser and calls `after_step`. An optimiser may ask for `backward` twice a step, at other weights.
    """

    network: nn.Module
    """Its parameters are trained; everything a checkpoint must keep is in its `state_dict`."""
    backward: Callable[[Objective, Batch], Tensor]
    """As `backward_once`; it may run the objective several times, at weights of its own making."""
    finish: Callable[[], nn.Module]
    """Returns the network as an ordinary one, in eval mode, with the weights learned so far. The course goes
    on unharmed."""
    after_step: Callable[[int], None] = _nothing
    """Called with the number of the step that was just taken."""
    choices: tuple[Candidate, ...] = ()
    """Blocks the method put in place of layers for good; they belong in the plan of the result."""
    summed: bool = False
    """Whether gradients are those of all processes when `backward` returns, so that the loop adds up none."""
    keeps_last: bool = False
    """Whether the last epoch is the result whatever a judge says: the network is trained for more than its
    own score, such as for being cut to low ranks, and the start may well have a better one."""


@dataclass(frozen=True)
class MethodOptions:
    """What methods can be told; each reads its own."""

    factors: int = 2
    """`lorita`: how many factors a weight is the product of."""
    mode: Literal["channel", "spatial"] = "channel"
    """`decomposable`, `trp`: how kernels are read as matrices."""
    smallest: float = 0.01
    largest: float = 0.25
    """`decomposable`: shares of all singular values between which a step draws its own."""
    low_rank_share: float = 0.5
    """`decomposable`: weight of the low-rank loss, lambda of the paper."""
    low_rank_images: float = 1.0
    """`decomposable`: share of a step's images the low-rank loss is of; 0.5 saves a quarter of the work."""
    least_rank: int = 5
    """`decomposable`: no layer gets fewer."""
    refresh: int = 10
    """`decomposable`, `trp`: steps between two singular value decompositions."""
    energy: float = 0.995
    """`trp`: share of the squared singular values a truncation keeps."""
    nuclear: float = 3e-4
    """`trp`: weight of the sum of singular values."""
    orthonormal: float = 0.1
    """`bsconv-s`: weight of the penalty."""
    middle: float = 0.25
    """`bsconv-s`: channels in the middle, as a share of the inputs."""
    seed: int = 0
    input_shape: tuple[int, int, int] | None = None
    """Of one image; methods that put blocks in place of layers count what they cost by it."""
    start: Literal["balanced", "orthogonal"] = "balanced"
    """`lorita`: factors that share the singular values, or orthogonal ones before one that has them all."""


@dataclass(frozen=True)
class TrainMethod:
    """A way to train a network: one file of `train/methods/`."""

    name: str
    summary: str
    paper: str
    """Authors and place; empty for what everybody does."""
    begin: Callable[[nn.Module, MethodOptions], Course]
    """Takes a network (which becomes the course's to change) to the start of its training.

    Raises ConfigError or ModelError where the options or the network do not suit the method."""
