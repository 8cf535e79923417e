"""Refits layers that lost inputs or outputs to what the dense network puts out there.

A layer that computes W x, with x the patches it really gets now, should put out y, what the kept outputs of
the dense layer are. Around the weights W0 it has, with M the moment of x and C that of y with x, both about
their means,

    W = W0 + (C - W0 M) (M + damping)^-1.

How much damping there should be is tried on images that did not take part: a classifier sees one patch of
each image, and least squares would learn few of them by heart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from edgecompress.core.types import Group
from edgecompress.factors.patches import patches_per_image, sample_patches
from edgecompress.nets.metric import INPUT_DAMPING, damped
from edgecompress.nets.modules import layer_named, op_of, weight_of
from edgecompress.nets.narrowing import Kept, entries

DAMPINGS = (INPUT_DAMPING, 1e-2, 1.0)
"""Shares of the mean diagonal; beyond them weights stay as they are."""


def remaining_outputs(dense: nn.Module, groups: Iterable[Group], kept: Kept) -> dict[str, list[int]]:
    """Returns, for every module that gets narrower, which outputs of the dense one stay.

    Where a module loses inputs alone these are all. Attentions themselves are not among them.
    """
    lost: dict[str, set[int]] = defaultdict(set)
    for group in groups:
        gone = sorted(set(range(group.width)) - set(kept.get(group.name, range(group.width))))
        for cut in group.cuts if gone else ():
            if cut.axis != "head_dim":
                made = cut.axis != "inputs"
                lost[cut.module].update(entries(cut, gone, group.width).tolist() if made else ())
    widths = {name: len(cast(Tensor, layer_named(dense, name).weight)) for name in lost}
    return {name: [row for row in range(widths[name]) if row not in gone] for name, gone in lost.items()}


def refit_narrowed_(
    module: nn.Module,
    original: nn.Module,
    rows: Tensor,
    students: Sequence[Tensor],
    teachers: Sequence[Tensor],
    seed: int,
) -> Tensor:
    """Fits a narrowed layer to `rows` of the original one's outputs, in place; biases stay.

    Returns what has to be added to the mean of each output, biases left aside. Depthwise layers keep their
    weights: the little they could make up for is not worth the noise.
    """
    if op_of(original).groups > 1:  # with one channel left the narrowed one has one group, too
        return _mean_outputs(original, teachers)[rows] - _mean_outputs(module, students)
    halves = _halves(module, original, rows, students, teachers, seed)
    whole, weight = halves[0] + halves[1], weight_of(module)
    fitted = _best(halves, whole, weight.double().flatten(1))
    cast(Tensor, module.weight).copy_(fitted.reshape(cast(Tensor, module.weight).shape))
    return whole.made_mean - fitted @ whole.seen_mean


def _mean_outputs(module: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the mean of each output channel of a convolution without its bias."""
    made: list[Tensor] = [module.forward(x).double() for x in inputs]  # not called: hooks may wait there
    count = sum(y.numel() // y.shape[1] for y in made)
    mean: Tensor = torch.stack([y.sum((0, 2, 3)) for y in made]).sum(0) / count
    bias = cast(Tensor | None, module.bias)
    return mean if bias is None else mean - bias.double()


@dataclass(frozen=True)
class _Moments:
    """Sums over patches, about an origin of each of both sides; float64."""

    count: int
    seen: Tensor
    """(n,) of patches."""
    made: Tensor
    """(f,) of wanted outputs."""
    square: Tensor
    """(n, n)."""
    product: Tensor
    """(f, n)."""
    origins: tuple[Tensor, Tensor]

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(
            self.count + other.count,
            self.seen + other.seen,
            self.made + other.made,
            self.square + other.square,
            self.product + other.product,
            self.origins,
        )

    @property
    def seen_mean(self) -> Tensor:
        return self.seen / self.count + self.origins[0]

    @property
    def made_mean(self) -> Tensor:
        return self.made / self.count + self.origins[1]

    def centred(self) -> tuple[Tensor, Tensor]:
        """Returns M and C about the means: these are set right afterwards."""
        seen, made = self.seen / self.count, self.made / self.count
        moment = self.square / self.count - torch.outer(seen, seen)
        return moment, self.product / self.count - torch.outer(made, seen)


def _halves(
    module: nn.Module,
    original: nn.Module,
    rows: Tensor,
    students: Sequence[Tensor],
    teachers: Sequence[Tensor],
    seed: int,
) -> tuple[_Moments, _Moments]:
    """Returns the moments of two halves of the patches; each image is in one of them."""
    ops, kernel = (op_of(module), op_of(original)), weight_of(original)[rows].flatten(1)
    per_image = patches_per_image(ops[0], sum(len(x) for x in students))
    halves: list[_Moments | None] = [None, None]
    origins: tuple[Tensor, Tensor] | None = None
    for index, (student, teacher) in enumerate(zip(students, teachers, strict=True)):
        seen = sample_patches(student, ops[0], per_image, seed + index)
        made = sample_patches(teacher, ops[1], per_image, seed + index) @ kernel.T
        origins = origins or (seen.mean(0), made.mean(0))
        each, images = len(seen) // len(student), len(student)
        middle = each * ((images + index % 2) // 2)  # of batches of one image every other one
        for half, part in enumerate((slice(0, middle), slice(middle, None))):
            more, before = _moments(seen[part], made[part], origins), halves[half]
            halves[half] = more if before is None else before + more
    assert halves[0] is not None and halves[1] is not None
    return halves[0], halves[1]


def _moments(seen: Tensor, made: Tensor, origins: tuple[Tensor, Tensor]) -> _Moments:
    # about an origin, float32 products keep the digits that centring leaves
    seen, made = seen - origins[0], made - origins[1]
    sums = (seen.sum(0), made.sum(0), seen.T @ seen, made.T @ seen)
    seen_sum, made_sum, square, product = (each.double() for each in sums)
    return _Moments(
        len(seen), seen_sum, made_sum, square, product, (origins[0].double(), origins[1].double())
    )


def _best(halves: tuple[_Moments, _Moments], whole: _Moments, weight: Tensor) -> Tensor:
    """Returns the weights at the damping that serves the other half best; those given where none helps."""
    if halves[0].count == 0 or halves[1].count == 0:
        return weight
    tried = {damping: _solved(halves[0], weight, damping) for damping in DAMPINGS}
    errors = {damping: _error(halves[1], one) for damping, one in tried.items()}
    best = min(errors, key=errors.__getitem__)
    return _solved(whole, weight, best) if errors[best] < _error(halves[1], weight) else weight


def _solved(moments: _Moments, weight: Tensor, damping: float) -> Tensor:
    moment, cross = moments.centred()
    factor = torch.linalg.cholesky(damped(moment, damping))
    return weight + torch.cholesky_solve((cross - weight @ moment).T, factor).T


def _error(moments: _Moments, weight: Tensor) -> float:
    """Returns the mean squared error of the outputs, up to a constant."""
    moment, cross = moments.centred()
    return float((weight * (weight @ moment - 2 * cross)).sum())
