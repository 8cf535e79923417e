"""Optimisers whose steps take two gradients: at the weights, and where a small step uphill leads from there.

One class does the work of all of them; a `Rule` says what is particular about each. A step:

    g = gradient at w;  e = radius * ascent(w, g), one norm over all parameters
    g* = gradient at w + e, on the same batch
    u = g* + scale * g, divided by its norm where the rule wants steps of one length
    w = what the base optimiser makes of w and u

Where a trigger is waited for, steps are those of the base optimiser until it has fired. A vector without a
direction, 0 or not finite, makes no step, or one without perturbation; `skipped` counts both.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from edgecompress.errors import ConfigError
from edgecompress.train.perturbation import (
    Tensors,
    buffers_kept,
    decay_,
    global_norm,
    gradients,
    has_direction,
    moved,
    randomness,
    rescale_,
)
from edgecompress.train.radius_schedules import RadiusSchedule, progress_at
from edgecompress.train.timing import Trigger

Run = Callable[[], float]
_OWN = "two_pass"


@dataclass(frozen=True)
class Rule:
    """What makes one of these optimisers what it is."""

    ascent: Callable[[Tensors, Tensors], tuple[Tensors, float]]
    """Of weights and gradients: which way to go, and what to divide it by for radius 1. Changes neither."""
    unit_steps: bool
    """Whether the base optimiser gets u at length 1."""
    radius: RadiusSchedule
    scale: RadiusSchedule


class TwoPass(torch.optim.Optimizer):
    """Steps by gradients at perturbed weights, through a base optimiser that is made of `base_kwargs`.

    Groups of parameters are the base optimiser's, so schedulers of the learning rate work as ever.

    radius, scale: None for what is usual.
    timing: the trigger that is waited for; None to perturb from the first step on.
    bn_modules: modules, such as the network, whose buffers only the first pass may change ("freeze").
    clock: whether schedules count epochs from the start, or from when the trigger fired.
    radius_limit: largest radius; what a schedule says beyond it is cut off with a warning.
    same_randomness: the second pass draws the random numbers of the first, for dropout.
    rescale_momentum_on_switch: when the trigger has fired, momentum is divided by the norm of the gradient,
        since what comes to it now has length 1.
    decoupled_decay: weights decay by lr * weight_decay beside the base optimiser, not through its momentum.
    perturb_every: one in so many steps takes a second gradient; the others reuse the last g* - g.
    """

    rule: ClassVar[Rule]

    def __init__(
        self,
        params: Iterable[Any],
        base_cls: type[torch.optim.Optimizer] = torch.optim.SGD,
        *,
        radius: RadiusSchedule | None = None,
        scale: RadiusSchedule | None = None,
        timing: Trigger | None = None,
        bn_modules: Iterable[nn.Module] = (),
        bn_second_pass: Literal["freeze", "update"] = "freeze",
        clock: Literal["global", "since_trigger"] = "global",
        radius_limit: float = 5.0,
        same_randomness: bool = False,
        rescale_momentum_on_switch: bool = False,
        decoupled_decay: bool = False,
        perturb_every: int = 1,
        **base_kwargs: Any,  # noqa: ANN401 - every base optimiser has its own
    ) -> None:
        if perturb_every < 1:
            raise ConfigError(f"perturb_every {perturb_every}: must be 1 or more")
        self.base = base_cls(params, **base_kwargs)
        super().__init__(self.base.param_groups, self.base.defaults)
        self._share_with_base()
        self.radius, self.scale = radius or self.rule.radius, scale or self.rule.scale
        self.timing, self.clock, self.radius_limit = timing, clock, radius_limit
        self.kept_modules = tuple(bn_modules) if bn_second_pass == "freeze" else ()
        self.same_randomness, self.decoupled_decay = same_randomness, decoupled_decay
        self.rescales, self.perturb_every = rescale_momentum_on_switch and timing is not None, perturb_every
        self.skipped = {"steps": 0, "perturbations": 0}
        self._epoch, self._epochs, self._first_active = 0.0, 0, 0
        self._active_steps = 0
        self._pulls: dict[Tensor, Tensor] = {}
        self._warned = False

    def _share_with_base(self) -> None:
        self.state, self.param_groups = self.base.state, self.base.param_groups

    # Where training is

    def set_progress(self, epoch: float, epochs: int) -> None:
        """Says which epoch of how many begins, counted from 0. Schedules follow parts of epochs, too."""
        if epoch < 0 or epochs < 1:
            raise ConfigError(f"set_progress: epoch {epoch:g} of {epochs}; the first epoch is 0 of 1 or more")
        self._epoch, self._epochs = epoch, epochs

    def observe_epoch(self, train_loss: float, validation_loss: float | None) -> None:
        """Says how an epoch went; a trigger may fire. All processes must call it with the same losses."""
        if self.timing is None or self.timing.fired:
            return
        if self._epochs == 0:
            raise ConfigError("observe_epoch: call set_progress(epoch, epochs) before each epoch")
        self.timing.end_epoch(int(self._epoch), self._epochs, train_loss, validation_loss)
        self._first_active = int(self._epoch) + 1

    @property
    def active(self) -> bool:
        """Whether steps perturb: there is no trigger, or it has fired."""
        return self.timing is None or self.timing.fired

    @property
    def radius_now(self) -> float:
        """How far weights are perturbed now."""
        wanted = self.radius(self._progress())
        if wanted > self.radius_limit and not self._warned:
            warnings.warn(
                f"radius {wanted:g} is cut off at {self.radius_limit:g}: such perturbations ruin training; "
                "change the schedule or radius_limit",
                stacklevel=2,
            )
            self._warned = True
        return min(wanted, self.radius_limit)

    @property
    def scale_now(self) -> float:
        """Weight of the first gradient now."""
        return self.scale(self._progress())

    def _progress(self) -> float:
        if self._epochs == 0 and {self.radius.shape, self.scale.shape} != {"const"}:
            raise ConfigError(
                "schedule of radius or scale: call set_progress(epoch, epochs) before each epoch"
            )
        start = self._first_active if self.clock == "since_trigger" else 0
        return progress_at(self._epoch - start, self._epochs - start)

    # Steps

    @torch.no_grad()
    def step(self, closure: Run | None = None) -> float:  # type: ignore[override]  # there is no step without
        """Takes a step and returns the loss at the weights before it, that of the first call of `closure`.

        Raises:
            ConfigError: there is no closure, or a gradient is sparse.
        """
        if closure is None:
            raise ConfigError(
                "step: needs a closure that zeroes gradients, goes both ways and returns the loss"
            )
        run = torch.enable_grad()(closure)
        chance = torch.get_rng_state() if self.same_randomness else None
        loss = run()
        weights = self._moving()
        norm = global_norm(gradients(weights))
        if self.timing is not None:
            self.timing.see_gradient(norm)
        if not math.isfinite(norm) or (self.active and not has_direction(norm)):
            self.skipped["steps"] += 1
        elif self.active:
            self._active_step(run, weights, norm, chance)
        else:
            self._base_step()
        return loss

    def _moving(self) -> list[Tensor]:
        moving = [one for group in self.param_groups for one in group["params"] if one.grad is not None]
        if any(one.grad.is_sparse for one in moving):
            raise ConfigError("a gradient is sparse; make embeddings with sparse=False")
        return moving

    def _active_step(self, run: Run, weights: Tensors, norm: float, chance: Tensor | None) -> None:
        if self.rescales and self._active_steps == 0:
            rescale_(self.base, 1 / norm)
        scale, reuses = self.scale_now, self.perturb_every > 1
        first = torch._foreach_clone(gradients(weights)) if scale > 0 or reuses else ()
        if self._active_steps % self.perturb_every == 0 or not self._pulls.keys() >= set(weights):
            self._second_pass(run, weights, chance)
            if reuses:
                pulls = torch._foreach_sub(gradients(weights), first)
                self._pulls = dict(zip(weights, pulls, strict=True))
        else:
            torch._foreach_add_(gradients(weights), [self._pulls[one] for one in weights])
        self._active_steps += 1
        if scale > 0:
            torch._foreach_add_(gradients(weights), first, alpha=scale)
        self._descend(gradients(weights))

    def _second_pass(self, run: Run, weights: Tensors, chance: Tensor | None) -> None:
        """Replaces gradients by those at perturbed weights; without a direction they stay what they are."""
        ascent, norm = self.rule.ascent(weights, gradients(weights))
        if not has_direction(norm):
            self.skipped["perturbations"] += 1
            return
        distance = self.radius_now / norm
        with moved(weights, ascent, distance), buffers_kept(self.kept_modules), randomness(chance):
            run()
        self._same_parameters_(weights)

    def _same_parameters_(self, weights: Tensors) -> None:
        """Gives gradients to the parameters that had one in the first pass: chance may leave layers out."""
        missing = [one for one in weights if one.grad is None]
        for one in missing:
            one.grad = torch.zeros_like(one)
        if len(moving := self._moving()) > len(weights):
            expected = set(weights)
            for one in moving:
                one.grad = one.grad if one in expected else None

    def _descend(self, update: Tensors) -> None:
        norm = global_norm(update)
        if not has_direction(norm):
            self.skipped["steps"] += 1
            return
        if self.rule.unit_steps:
            torch._foreach_div_(update, norm)
        self._base_step()

    def _base_step(self) -> None:
        if not self.decoupled_decay:
            self.base.step()
            return
        rates = [group["weight_decay"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                decay_(group)
                group["weight_decay"] = 0.0
            self.base.step()
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["weight_decay"] = rate

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the base optimiser and, beside it, where this one is."""
        places = {one: place for place, one in enumerate(self._parameters())}
        own = {
            "epoch": self._epoch,
            "epochs": self._epochs,
            "first_active": self._first_active,
            "active_steps": self._active_steps,
            "skipped": dict(self.skipped),
            "timing": None if self.timing is None else self.timing.state_dict(),
            "pulls": {places[one]: pull for one, pull in self._pulls.items()},
        }
        return {**self.base.state_dict(), _OWN: own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes back to where `state_dict` was taken; steps from there are the same to the bit.

        Raises:
            ConfigError: it is the state of another optimiser, or of one with another trigger.
        """
        own = state_dict.get(_OWN)
        if own is None or (own["timing"] is None) != (self.timing is None):
            raise ConfigError("state of an optimiser: it is of another one, or of one with other timing")
        self.base.load_state_dict({key: value for key, value in state_dict.items() if key != _OWN})
        self._share_with_base()
        self._epoch, self._epochs = own["epoch"], own["epochs"]
        self._first_active, self._active_steps = own["first_active"], own["active_steps"]
        self.skipped = dict(own["skipped"])
        if self.timing is not None:
            self.timing.load_state_dict(own["timing"])
        parameters = self._parameters()
        self._pulls = {parameters[place]: pull.clone() for place, pull in own["pulls"].items()}

    def _parameters(self) -> list[Tensor]:
        return [one for group in self.param_groups for one in group["params"]]
