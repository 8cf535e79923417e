"""What the batch norms of a network have learnt of their inputs, and what they get now.

The network is a frozen copy. Of the input of a batch norm only the sum and the sum of squares are taken, per
image and channel: both ways that is two or three walks over memory, and the batch norm is applied on the way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from edgecompress.nets.folding import BatchNorm, exchange_, knows_statistics, scale_and_shift

EPSILON = 1e-6
"""Added to variances, stored and new ones, before the root is taken."""


@dataclass(frozen=True)
class StoredStatistics:
    """What a batch norm remembers of its training."""

    name: str
    mean: Tensor
    deviation: Tensor

    @property
    def is_fresh(self) -> bool:
        """Tells whether it never saw an image."""
        return not self.mean.any() and bool((self.deviation - 1).abs().max() < EPSILON)


@dataclass(frozen=True)
class InputSums:
    """Of the input of one batch norm: (images, channels) each."""

    norm: int
    """Which one, in the order of modules."""
    sums: Tensor
    squares: Tensor
    count: int
    """Values per image and channel."""


class WatchedNetwork(nn.Module):
    """A frozen copy of a network, in eval mode, that tells what its batch norms get."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self._seen: list[InputSums] = []
        norms = {name: one for name, one in self.network.named_modules() if has_statistics(one)}
        self.stored = tuple(_stored(name, one) for name, one in norms.items())
        replaced: dict[nn.Module, nn.Module] = {}
        for index, norm in enumerate(norms.values()):
            if isinstance(norm, nn.BatchNorm2d) and _is_plain(norm):
                replaced[norm] = _SeenNorm(norm, index, self._seen)
            else:
                norm.register_forward_pre_hook(_reading_hook(index, self._seen), with_kwargs=True)
        exchange_(self.network, replaced)

    def forward(self, images: Tensor) -> tuple[Tensor, tuple[InputSums, ...]]:
        """Returns the outputs, and what every batch norm got, in the order of calls."""
        self._seen.clear()
        outputs: Tensor = self.network(images)
        seen = tuple(self._seen)
        self._seen.clear()
        return outputs, seen


def has_statistics(module: nn.Module) -> bool:
    """Tells whether a module is a batch norm, frozen or not, that remembers mean and variance."""
    known = isinstance(module, _BatchNorm) or type(module).__name__ == "FrozenBatchNorm2d"
    return known and getattr(module, "running_mean", None) is not None


def input_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns sum and sum of squares per image and channel; the gradient passes through."""
    _, sums, squares = _Sums.apply(x, None, None)  # type: ignore[no-untyped-call]
    return sums, squares


def _is_plain(norm: BatchNorm) -> bool:
    return knows_statistics(norm) and type(norm).forward is nn.BatchNorm2d.forward


def _stored(name: str, norm: nn.Module) -> StoredStatistics:
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    return StoredStatistics(name, mean.detach().clone(), (variance.detach() + EPSILON).sqrt())


class _Sums(torch.autograd.Function):
    """Scales and shifts channels, or lets them be, and adds up what comes in.

    `torch.var_mean` takes thirty times as long on a CPU, and its gradient three more walks over memory.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own type
        x: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, scale)
        flat = x.flatten(2) if x.ndim > 2 else x.unsqueeze(2)
        squares = torch.linalg.vector_norm(flat, dim=2).square_()
        y = x if scale is None or shift is None else torch.addcmul(shift, scale, x)
        return y, flat.sum(2), squares

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        gradient: Tensor,
        of_sums: Tensor,
        of_squares: Tensor,
    ) -> tuple[Tensor, None, None]:
        x, scale = ctx.saved_tensors
        each = (..., *[None] * (x.ndim - 2))
        through = of_sums[each] + gradient if scale is None else torch.addcmul(of_sums[each], scale, gradient)
        return through.addcmul_(x, of_squares[each], value=2), None, None


class _SeenNorm(nn.Module):
    """A batch norm in eval mode that notes what it gets."""

    def __init__(self, norm: nn.BatchNorm2d, index: int, seen: list[InputSums]) -> None:
        super().__init__()
        dtype = cast(Tensor, norm.running_mean).dtype
        scale, shift = (one.to(dtype)[None, :, None, None] for one in scale_and_shift(norm))
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self._index, self._into = index, seen

    def forward(self, input: Tensor) -> Tensor:
        """Returns what the batch norm would."""
        y, sums, squares = _Sums.apply(input, self.scale, self.shift)  # type: ignore[no-untyped-call]
        self._into.append(InputSums(self._index, sums, squares, input[0, 0].numel()))
        return cast(Tensor, y)


def _reading_hook(index: int, seen: list[InputSums]) -> Callable[..., Any]:
    """Returns a hook for batch norms of other kinds, which run as they are."""

    def read(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> tuple[Any, Any]:
        key, x = (None, args[0]) if args else next(iter(kwargs.items()))
        passed, sums, squares = _Sums.apply(x, None, None)  # type: ignore[no-untyped-call]
        seen.append(InputSums(index, sums, squares, x[0, 0].numel()))
        return ((passed, *args[1:]), kwargs) if key is None else ((), {**kwargs, key: passed})

    return read
