"""Numbers that scale the units of groups: one learns from them which units a network could do without.

A gate multiplies what modules put out, so its gradient says how the loss depends on a unit, and where it is
zero the unit can be taken away. Folded into the weights, gates cost nothing.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from edgecompress.core.types import Cut, Group
from edgecompress.errors import ModelError
from edgecompress.nets.modules import layer_named
from edgecompress.nets.narrowing import entries

Alphas = Mapping[str, Tensor]
"""By name of group: one number per unit, or (images, units) to scale every image on its own."""


@dataclass(frozen=True)
class Gates:
    """The gates of a network."""

    alphas: dict[str, nn.Parameter]


@contextlib.contextmanager
def gated(model: nn.Module, groups: Sequence[Group], alphas: Alphas | None = None) -> Iterator[Gates]:
    """Multiplies the units of groups by their gates as long as the context is open.

    Without `alphas` there is a new gate for every unit, all of them one. Parameters that are given are used
    as they are, so that several networks can share them.

    Raises:
        ModelError: a module cannot carry a gate; inside, a forward pass that does not call one that should.
    """
    gates = Gates(_parameters(model, groups, alphas))
    missing: set[str] = set()
    handles = [_gate(model, name, parts, gates, missing) for name, parts in _by_module(groups).items()]
    handles += _watch(model, set(_by_module(groups)), missing)
    try:
        yield gates
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def fold_(model: nn.Module, groups: Sequence[Group], alphas: Alphas) -> None:
    """Multiplies gates into the weights, in place: the network computes what it did with them.

    Raises:
        ModelError: a module has no weights to scale.
    """
    for name, parts in _by_module(groups).items():
        module = layer_named(model, name)
        _channel_axis(module, name)
        weight, bias = module.weight, module.bias
        if not isinstance(weight, Tensor):
            raise ModelError(f"{name}: has no weights its gates could be folded into")
        factor = _factor(parts, alphas, len(weight)).to(weight)
        weight.mul_(factor.reshape(-1, *[1] * (weight.ndim - 1)))
        if isinstance(bias, Tensor):
            bias.mul_(factor)


def gate_width(module: nn.Module) -> int:
    """Returns how many channels a gate module puts out."""
    for name in ("out_features", "out_channels", "num_features"):
        if hasattr(module, name):
            return int(getattr(module, name))
    raise ModelError(f"{type(module).__name__} has no channels to gate")


Part = tuple[Group, Cut]


def _by_module(groups: Sequence[Group]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = defaultdict(list)
    for group in groups:
        for cut in group.gates:
            found[cut.module].append((group, cut))
    return dict(found)


def _parameters(model: nn.Module, groups: Sequence[Group], alphas: Alphas | None) -> dict[str, nn.Parameter]:
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    found: dict[str, nn.Parameter] = {}
    for group in groups:
        given = torch.ones(group.width, dtype=dtype) if alphas is None else alphas[group.name]
        if given.shape[-1] != group.width:
            raise ModelError(f"{group.name}: {given.shape[-1]} gates for {group.width} units")
        found[group.name] = given if isinstance(given, nn.Parameter) else nn.Parameter(given)
    return found


def _gate(
    model: nn.Module, name: str, parts: Sequence[Part], gates: Gates, missing: set[str]
) -> RemovableHandle:
    module = layer_named(model, name)
    axis, width = _channel_axis(module, name), gate_width(module)
    for group, cut in parts:
        if int(entries(cut, [group.width - 1], group.width).max()) >= width:
            raise ModelError(f"{name}: has {width} outputs, too few for the gates of {group.name}")

    def scale(_: nn.Module, __: object, output: Tensor) -> Tensor:
        missing.discard(name)
        return output * _fitted(_factor(parts, gates.alphas, width), output, axis)

    return module.register_forward_hook(scale)


def _watch(model: nn.Module, names: set[str], missing: set[str]) -> list[RemovableHandle]:
    """Makes every forward pass fail that leaves a gate out: it would look as if nothing depended on it."""

    def start(*_: object) -> None:
        missing.update(names)

    def end(*_: object) -> None:
        if missing:
            raise ModelError(
                f"{min(missing)}: is never called as a module in a forward pass, so gates have no effect "
                "there; rewrite attention first or leave its group out"
            )

    return [model.register_forward_pre_hook(start), model.register_forward_hook(end)]


def _channel_axis(module: nn.Module, name: str) -> int:
    """Returns along which axis of its outputs a module has its channels."""
    match module:
        case nn.Linear():
            return -1  # maps of Swin have four axes and channels last
        case nn.Conv2d() | nn.BatchNorm2d() | nn.BatchNorm1d():
            return 1
    raise ModelError(
        f"{name}: {type(module).__name__} cannot carry gates; batch norms, Conv2d and Linear can"
    )


def _factor(parts: Sequence[Part], alphas: Alphas, width: int) -> Tensor:
    """Returns the factor of every channel, (channels,) or (images, channels); 1 where there is no gate."""
    first = alphas[parts[0][0].name]
    factor = torch.ones(*first.shape[:-1], width, dtype=first.dtype)
    for group, cut in parts:
        own = alphas[group.name]
        spread = own.repeat_interleave(cut.run, dim=-1)
        spread = torch.cat([spread] * cut.repeats, dim=-1)
        factor = factor.index_copy(-1, entries(cut, range(group.width), group.width), spread)
    return factor


def _fitted(factor: Tensor, output: Tensor, axis: int) -> Tensor:
    """Gives factors the axes of an output; the windows of one image lie side by side on the first."""
    shape = [1] * output.ndim
    shape[axis] = factor.shape[-1]
    if factor.ndim == 2:
        factor = factor.repeat_interleave(len(output) // len(factor), dim=0)
        shape[0] = len(output)
    return factor.reshape(shape)


Loss = Callable[[Tensor], Tensor]
"""Gets the outputs for some images, returns one number."""


def gate_gradients(
    model: nn.Module, groups: Sequence[Group], images: Tensor, loss: Loss
) -> dict[str, Tensor]:
    """Returns the gradient of a loss by the gates at one, (images, units): what every image says itself.

    The loss must be a sum over images, and the network in eval mode, so that images do not meet.
    """
    ones = {g.name: torch.ones(len(images), g.width, dtype=images.dtype) for g in groups}
    with gated(model, groups, ones) as gates:
        names = list(gates.alphas)
        found = torch.autograd.grad(loss(model(images)), [gates.alphas[name] for name in names])
    return dict(zip(names, found, strict=True))
