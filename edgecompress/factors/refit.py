"""Refits compressed layers, first to last, so that each makes up for the errors of those before it.

Every layer is fitted to the *dense* layer's outputs on the inputs it really gets in the compressed
network. No labels, no gradient through the network: one pass over the images, one small problem each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Candidate, Layer
from edgecompress.factors.patches import patches_per_image, sample_patches
from edgecompress.factors.quadratic import Target, refine, solve_last
from edgecompress.nets.chains import filled_block, kernels_of
from edgecompress.nets.lockstep import run_in_step
from edgecompress.nets.metric import LayerMetric
from edgecompress.nets.modules import layer_named, weight_of

Which = Literal["both", "second"]
"""`second`: the last layer of each block, exactly. `both`: all its layers, by L-BFGS."""


def refit_(
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
) -> None:
    """Refits the chosen blocks of `compressed` in forward order against `dense`."""
    by_name = {layer.name: layer for layer in layers if layer.name in choices}
    ticks = progress.track(iter(by_name), "refit", total=len(by_name))

    def visit(name: str, inputs: list[list[Tensor]]) -> None:
        next(ticks, None)
        layer, students, teachers = by_name[name], inputs[0], inputs[1]
        kernel = weight_of(layer_named(dense, name))
        target = _target(layer, kernel, students, teachers, metrics[name].output, seed)
        _refit_one_(compressed, choices[name], layer, target, which)

    run_in_step([compressed, dense], list(by_name), batches, visit)
    for _ in ticks:  # close the bar
        pass


def _refit_one_(model: nn.Module, choice: Candidate, layer: Layer, target: Target, which: Which) -> None:
    (block,) = choice.blocks
    module = layer_named(model, layer.name)
    kernels = kernels_of(module)
    with torch.enable_grad():
        if which == "second" and len(block.branches) == 1:
            kernels = solve_last(block, kernels, layer.op, target)
        else:
            kernels = refine(block, kernels, layer.op, target)
    fresh = filled_block(block, kernels, None)
    for old, new in zip(module.parameters(), fresh.parameters(), strict=True):
        if old.ndim > 1:  # biases stay
            old.copy_(new)


def _target(
    layer: Layer,
    kernel: Tensor,
    students: list[Tensor],
    teachers: list[Tensor],
    output: Tensor | None,
    seed: int,
) -> Target:
    images = sum(len(x) for x in students)
    per_image = patches_per_image(layer.op, images)
    size = kernel[0].numel()
    moment, cross = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    count = 0
    for index, (student, teacher) in enumerate(zip(students, teachers, strict=True)):
        seen = sample_patches(student, layer.op, per_image, seed + index)
        wanted = sample_patches(teacher, layer.op, per_image, seed + index)
        moment += (seen.T @ seen).double()
        cross += (wanted.T @ seen).double()
        count += len(seen)
    weight = torch.eye(len(kernel), dtype=torch.float64) if output is None else output
    return Target(moment / count, kernel.flatten(1).double() @ cross / count, weight)
