"""Refits compressed layers, first to last, so that each makes up for the errors of those before it.

Every layer is fitted to the *dense* layer's outputs on the inputs it really gets in the compressed
network. No labels, no gradient through the network: one pass over the images, one small problem each.
Layers are compressed by blocks in their place, or by having lost inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from edgecompress.core.freed_memory import give_back
from edgecompress.core.progress import Progress
from edgecompress.core.types import Block, Candidate, Layer
from edgecompress.factors.batch_norm import NOTHING_NARROWED, Rows, rows_of
from edgecompress.factors.patches import patches_per_image, sample_patches
from edgecompress.factors.quadratic import Target, refine, solve_last
from edgecompress.factors.refit_narrowed import refit_narrowed_
from edgecompress.nets.chains import equivalent_kernel, fill_, kernels_of
from edgecompress.nets.lockstep import run_in_step
from edgecompress.nets.metric import LayerMetric
from edgecompress.nets.modules import block_layers, find_batch_norms, layer_named, weight_of

Which = Literal["none", "second", "both"]
"""`second`: the last layer of each block, exactly. `both`: all its layers, by L-BFGS."""


@dataclass(frozen=True)
class Fit:
    """A layer's least-squares problem, and the mean patches of both networks."""

    target: Target
    seen_mean: Tensor
    wanted_mean: Tensor


def repair_(
    compressed: nn.Module,
    dense: nn.Module,
    layers: Sequence[Layer],
    choices: Mapping[str, Candidate],
    batches: Sequence[Tensor],
    metrics: Mapping[str, LayerMetric],
    *,
    which: Which,
    seed: int,
    progress: Progress,
    narrowed: Rows = NOTHING_NARROWED,
) -> None:
    """Refits the chosen blocks of `compressed` in forward order against `dense`, and sets their means right.

    Layers of `narrowed` are refitted too: they lost inputs, or all outputs but those rows of the dense layer.
    The mean of every output channel is restored in the layer's own bias or in the batch norm that
    follows; a layer with neither keeps its shift.
    """
    by_name = {layer.name: layer for layer in layers if layer.name in choices or layer.name in narrowed}
    norms = _norm_pairs(compressed, dense, list(by_name), batches[0])
    ticks = progress.track(iter(by_name), "repair", total=len(by_name))

    def visit(name: str, inputs: list[list[Tensor]]) -> None:
        next(ticks, None)
        give_back()  # what all passes took on their way here
        module, original = layer_named(compressed, name), layer_named(dense, name)
        rows = rows_of(narrowed, name)
        if isinstance(rows, Tensor):
            shift = refit_narrowed_(module, original, rows, inputs[0], inputs[1], seed)
            _shift_mean_(module, original, norms.get(name), shift, rows)
            return
        kernel, block = weight_of(original).double(), choices[name].blocks[0]
        fit = _fit(by_name[name], kernel, inputs[0], inputs[1], metrics[name].output, seed)
        _refit_(module, block, by_name[name], fit.target, which)
        after = equivalent_kernel(block, kernels_of(module))
        shift = kernel.flatten(1) @ fit.wanted_mean - after.flatten(1) @ fit.seen_mean
        _shift_mean_(block_layers(module)[0][-1], original, norms.get(name), shift, rows)

    run_in_step([compressed, dense], list(by_name), batches, visit)
    for _ in ticks:  # close the bar
        pass


def _refit_(module: nn.Module, block: Block, layer: Layer, target: Target, which: Which) -> None:
    if which == "none":
        return
    kernels = kernels_of(module)
    with torch.enable_grad():
        if which == "second" and len(block.branches) == 1:
            kernels = solve_last(block, kernels, layer.op, target)
        else:
            kernels = refine(block, kernels, layer.op, target)
    fill_(module, kernels)


NormPair = tuple[nn.BatchNorm2d, nn.BatchNorm2d]
"""The batch norm behind a layer in the compressed and in the dense network."""


def _norm_pairs(
    compressed: nn.Module, dense: nn.Module, names: Sequence[str], batch: Tensor
) -> dict[str, NormPair]:
    channels, height, width = batch.shape[1:]
    ours, theirs = (find_batch_norms(net, names, (channels, height, width)) for net in (compressed, dense))
    return {name: (ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}


def _shift_mean_(
    last: nn.Module, original: nn.Module, norms: NormPair | None, shift: Tensor, rows: Tensor | slice
) -> None:
    """Counts from the dense network's bias or mean, so that repairing twice does not shift twice."""
    if isinstance(last.bias, Tensor) and isinstance(original.bias, Tensor):
        last.bias.copy_(original.bias[rows] + shift)
    elif norms is not None:
        ours, theirs = norms
        assert ours.running_mean is not None and theirs.running_mean is not None
        ours.running_mean.copy_(theirs.running_mean[rows] - shift)


def _fit(
    layer: Layer,
    kernel: Tensor,
    students: list[Tensor],
    teachers: list[Tensor],
    output: Tensor | None,
    seed: int,
) -> Fit:
    per_image = patches_per_image(layer.op, sum(len(x) for x in students))
    size = kernel[0].numel()
    moment, cross = (torch.zeros(size, size, dtype=torch.float64) for _ in range(2))
    means = torch.zeros(2, size, dtype=torch.float64)
    count = 0
    for index, (student, teacher) in enumerate(zip(students, teachers, strict=True)):
        seen = sample_patches(student, layer.op, per_image, seed + index)
        wanted = sample_patches(teacher, layer.op, per_image, seed + index)
        if index == 0:  # about their means, float32 products keep the digits that centring leaves
            origins = seen.mean(0), wanted.mean(0)
        seen, wanted = seen - origins[0], wanted - origins[1]
        moment += seen.T @ seen
        cross += wanted.T @ seen
        means += torch.stack([seen.sum(0), wanted.sum(0)])
        count += len(seen)
    means = means / count
    weight = torch.eye(len(kernel), dtype=torch.float64) if output is None else output
    # centred: the means are set right afterwards, so the kernel need not spend itself on them
    moment.div_(count).sub_(torch.outer(means[0], means[0]))
    cross.div_(count).sub_(torch.outer(means[1], means[0]))
    target = Target(moment, kernel.flatten(1) @ cross, weight)
    return Fit(target, means[0] + origins[0], means[1] + origins[1])
