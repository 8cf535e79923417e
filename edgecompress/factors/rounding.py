"""Rounds weights to 8 bits so that errors cancel on the images a layer sees, instead of each by itself.

Weights of one output channel are rounded one input after the other; what each loses is made up for by those
still to come, in the metric of the layer's inputs (GPTQ: Frantar, Ashkboos, Hoefler and Alistarh, ICLR 2023).
The grid is the one int8 runtimes use, 127 steps up to the largest weight of a channel, and that weight stays
where it is: a converter that rounds to the nearest finds nothing left to round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgecompress.core.types import Op
from edgecompress.errors import UnsupportedLayer
from edgecompress.factors.patches import patches_per_image, sample_patches
from edgecompress.nets.modules import op_of

STEPS = 127
DAMPING = 0.01
"""Added to the moment's diagonal as a share of its mean: images are few, directions many."""
MOST_ENTRIES = 8192
"""Larger patches would take minutes and gigabytes; their layers are rounded to the nearest."""


@dataclass
class _Seen:
    op: Op
    total: Tensor
    """Sum of x x^T over the patches x of every group, (groups, entries, entries)."""
    count: int = 0


@torch.no_grad()
def round_weights_(network: nn.Module, batches: Iterable[Tensor], *, seed: int = 0) -> int:
    """Rounds the convolutions and linear layers of a network in eval mode; returns how many.

    Layers that saw fewer patches than these have entries, or whose inputs are not understood, stay as they
    are: whoever writes the int8 file rounds them to the nearest.
    """
    layers = _layers(network)
    _watch(network, layers, list(batches), seed)
    done = 0
    for layer, seen in layers.items():
        if seen.count >= seen.total.shape[-1]:
            weight = layer.get_parameter("weight")
            rows = weight.flatten(1).double().chunk(seen.op.groups)
            rounded = [
                _rounded(part, moment / seen.count) for part, moment in zip(rows, seen.total, strict=True)
            ]
            weight.copy_(torch.cat(rounded).view_as(weight))
            done += 1
    return done


def _layers(network: nn.Module) -> dict[nn.Module, _Seen]:
    found = {}
    for module in network.modules():
        try:
            op = op_of(module)
        except UnsupportedLayer:
            continue
        entries = op.inputs // op.groups * op.kernel[0] * op.kernel[1]
        if entries <= MOST_ENTRIES:
            found[module] = _Seen(op, torch.zeros(op.groups, entries, entries, dtype=torch.float64))
    return found


def _watch(network: nn.Module, layers: dict[nn.Module, _Seen], batches: list[Tensor], seed: int) -> None:
    images = sum(len(batch) for batch in batches)

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        seen = layers[layer]
        patches = sample_patches(inputs[0], seen.op, patches_per_image(seen.op, images), seed)
        grouped = patches.reshape(len(patches), seen.op.groups, -1).transpose(
            0, 1
        )  # (groups, patches, entries)
        seen.total += (grouped.transpose(1, 2) @ grouped).double()
        seen.count += len(patches)

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        for batch in batches:
            network(batch)
    finally:
        for handle in handles:
            handle.remove()


def _rounded(weights: Tensor, moment: Tensor) -> Tensor:
    """Rounds (outputs, entries) weights for inputs with this second moment."""
    largest = weights.abs().amax(dim=1, keepdim=True)
    step = torch.where(largest > 0, largest / STEPS, torch.ones_like(largest))
    # entries that matter most go first, while there are others left to make up for them
    order = moment.diagonal().argsort(descending=True)
    left, fixed = weights[:, order].clone(), (weights.abs() == largest)[:, order]
    pull = _pull(moment[order][:, order])
    result = torch.empty_like(left)
    for entry in range(left.shape[1]):
        on_grid = (left[:, entry] / step[:, 0]).round().clamp(-STEPS, STEPS) * step[:, 0]
        result[:, entry] = torch.where(fixed[:, entry], weights[:, order[entry]], on_grid)
        error = (left[:, entry] - result[:, entry]) / pull[entry, entry]
        left[:, entry + 1 :] -= error[:, None] * pull[entry, entry + 1 :]
    return result[:, order.argsort()]


def _pull(moment: Tensor) -> Tensor:
    """Returns the upper Cholesky factor of the inverse moment: how an entry's error moves later ones."""
    least = torch.finfo(moment.dtype).tiny ** 0.5  # for inputs that are always zero
    amount = DAMPING * moment.diagonal().mean() + least
    damped = moment + amount * torch.eye(len(moment), dtype=moment.dtype)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor
