"""A frozen copy of a network whose layers run on mixtures of all their candidates."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.methods.contract import Fill
from edgecompress.nets.folding import fold_batch_norms_
from edgecompress.nets.modules import layer_named, replace_, zero_image
from edgecompress.search.contract import Problem
from edgecompress.search.mixture import Mixture, make_mixture, mixed_kernel

LARGE_KERNEL = 1 << 18
"""From this many weights on, products with factors take long enough to make them in half precision."""


class MixedLayer(nn.Module):
    """A convolution or linear layer whose kernel is a mixture; its weights are set before each pass."""

    def __init__(self, mixture: Mixture, bias: Tensor | None) -> None:
        super().__init__()
        self.mixture = mixture
        self.channels_last = True
        """Whether maps may be so in memory; not all networks bear it."""
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.weights = F.one_hot(torch.tensor(0), mixture.size).to(mixture.kernels.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Returns what one layer with the mixed kernel makes of x."""
        op = self.mixture.op
        kernel = mixed_kernel(self.mixture, self.weights)
        if op.kind == "linear":
            return F.linear(x, kernel.flatten(1), self.bias)
        kernel = kernel if self.channels_last else kernel.contiguous()
        return F.conv2d(x, kernel, self.bias, op.stride, op.padding, op.dilation)


@dataclass(frozen=True)
class Supernet:
    """The copy and its mixed layers, in the order of the problem's options."""

    module: nn.Module
    layers: tuple[MixedLayer, ...]

    def run(self, images: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Returns the outputs with one weight vector per layer."""
        for layer, own in zip(self.layers, weights, strict=True):
            layer.weights = own
        return cast(Tensor, self.module(in_order(images, self.layers)))


def in_order(images: Tensor, layers: Sequence[MixedLayer]) -> Tensor:
    """Returns the images in the order in memory the layers work in."""
    last = all(layer.channels_last for layer in layers)
    return images.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def make_supernet(
    model: nn.Module, problem: Problem, fill: Fill, input_shape: tuple[int, int, int], *, fold: bool = True
) -> Supernet:
    """Copies a model, in eval mode with all weights frozen, and mixes the layers of the problem.

    With `fold` batch norms become part of the layers before them, which is exact, and saves a step the
    time and the memory of a map each.
    """
    network = copy.deepcopy(model).eval().requires_grad_(False)
    names = [o.layer.name for o in problem.options]
    scales = _folded_scales_(network, names, input_shape) if fold else {}
    layers = []
    for options in problem.options:
        name = options.layer.name
        dense = layer_named(network, name)
        kernel, dtype = problem.kernels[name], dense.get_parameter("weight").dtype
        mixture = make_mixture(
            options.layer,
            kernel,
            options.candidates,
            fill,
            scale=scales.get(name),
            dtype=dtype,
            factor_dtype=_factor_dtype(kernel, dtype),
        )
        layers.append(MixedLayer(mixture, cast(Tensor | None, dense.bias)))
        replace_(network, name, layers[-1])
    _settle_order_(network, layers, input_shape)
    return Supernet(network, tuple(layers))


def _factor_dtype(kernel: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Returns bfloat16 for large kernels where the processor multiplies it, which is twice as fast.

    What it rounds off, a quarter of a per cent, is far less than what the ranks in question differ by.
    """
    known = torch.cpu.get_capabilities()
    fast = known.get("avx512_bf16", False) or known.get("amx_bf16", False)
    return torch.bfloat16 if fast and dtype == torch.float32 and kernel.numel() >= LARGE_KERNEL else dtype


@torch.no_grad()
def _settle_order_(
    network: nn.Module, layers: Sequence[MixedLayer], input_shape: tuple[int, int, int]
) -> None:
    """Leaves channels last where the network runs so; some ask for maps `view` can flatten."""
    image = zero_image(network, input_shape).expand(2, *input_shape)
    try:
        network(in_order(image, layers))
    except RuntimeError:
        for layer in layers:
            layer.channels_last = False


@torch.no_grad()
def _folded_scales_(
    network: nn.Module, names: Sequence[str], input_shape: tuple[int, int, int]
) -> dict[str, Tensor]:
    """Folds batch norms and returns by what each named layer's outputs are multiplied since.

    Folding multiplies weights, so ones become the scale itself.
    """
    weights = {name: layer_named(network, name).get_parameter("weight") for name in names}
    for weight in weights.values():
        weight.fill_(1)
    fold_batch_norms_(network, input_shape)
    return {name: weight.flatten(1)[:, 0].double() for name, weight in weights.items()}
