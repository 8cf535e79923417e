"""Activation-aware factors: best for what the layer computes on real images, where it matters.

Input side: the second moment of the patches. Output side: the second moment of the gradient of
log p(y | x) with y drawn from the dense model's own output, so no labels are needed. The outputs are
softened by a temperature: a network that is sure of its training images has gradients on few of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from edgecompress.core.progress import Progress
from edgecompress.core.types import Layer
from edgecompress.errors import ModelError
from edgecompress.factors.contract import Factors
from edgecompress.factors.patches import patches_per_image, sample_patches
from edgecompress.nets.metric import LayerMetric
from edgecompress.nets.modules import layer_named

ForwardHook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]

TEMPERATURE = 4.0
DRAWS = 3
"""Random directions of the output per image; their gradients estimate the full Fisher matrix."""


def aware_metrics(
    model: nn.Module, layers: Sequence[Layer], batches: Sequence[Tensor], seed: int, progress: Progress
) -> dict[str, LayerMetric]:
    """Returns the moments of every layer.

    Raises:
        ModelError: a layer's inputs or gradients are not finite.
    """
    inputs = input_moments(model, layers, batches, seed=seed, progress=progress)
    outputs = output_moments(model, layers, batches, seed=seed, progress=progress)
    return {layer.name: LayerMetric(inputs[layer.name], outputs[layer.name]) for layer in layers}


@torch.no_grad()
def input_moments(
    model: nn.Module, layers: Sequence[Layer], batches: Sequence[Tensor], *, seed: int, progress: Progress
) -> dict[str, Tensor]:
    """Returns the mean of x x^T over patches x, per layer, in float64."""
    images = sum(len(batch) for batch in batches)
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = dict.fromkeys((layer.name for layer in layers), 0)

    def record(layer: Layer, x: Tensor) -> None:
        count = patches_per_image(layer.op, images)
        patches = sample_patches(x, layer.op, count, seed + counts[layer.name])
        _add_(sums, layer.name, patches.T @ patches)
        counts[layer.name] += len(patches)

    modules = [(layer, layer_named(model, layer.name)) for layer in layers]
    hooks = [
        module.register_forward_pre_hook(lambda _, x, layer=layer: record(layer, x[0]))
        for layer, module in modules
    ]
    try:
        for batch in progress.track(batches, "input statistics"):
            model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: _finite(name, total.div_(counts[name])) for name, total in sums.items()}


def _add_(sums: dict[str, Tensor], name: str, product: Tensor) -> None:
    """Adds to a sum in float64, in place: those of wide layers take more memory than the network."""
    if name in sums:
        sums[name] += product
    else:
        sums[name] = product.double()


def output_moments(
    model: nn.Module, layers: Sequence[Layer], batches: Sequence[Tensor], *, seed: int, progress: Progress
) -> dict[str, Tensor]:
    """Returns the mean over images of sum_positions g g^T, g = gradient at the layer's output.

    Raises:
        ModelError: the model has a single output, or no gradient gets to a layer.
    """
    generator = torch.Generator().manual_seed(seed)
    sums: dict[str, Tensor] = {}
    modules = [(layer, layer_named(model, layer.name)) for layer in layers]
    hooks = [module.register_forward_hook(_watch_gradient(layer, sums)) for layer, module in modules]
    try:
        for batch in progress.track(batches, "gradient statistics"):
            _backward_fisher_draws(model, batch, generator)
    finally:
        for hook in hooks:
            hook.remove()
    for layer in layers:
        if layer.name not in sums:
            raise ModelError(
                f"{layer.name}: no gradient reaches it; take torch.no_grad() or detach() out of the model, "
                "pass --factors plain, or leave it out with --layers"
            )
    images = sum(len(batch) for batch in batches) * DRAWS
    return {name: _finite(name, total.div_(images)) for name, total in sums.items()}


def _watch_gradient(layer: Layer, sums: dict[str, Tensor]) -> ForwardHook:
    channels_last = layer.op.kind == "linear"

    def add(gradient: Tensor) -> None:
        rows = gradient if channels_last else gradient.movedim(1, -1)
        rows = rows.reshape(-1, layer.op.outputs)
        _add_(sums, layer.name, rows.T @ rows)

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(add)  # type: ignore[no-untyped-call]

    return hook


def _backward_fisher_draws(model: nn.Module, batch: Tensor, generator: torch.Generator) -> None:
    """Sends random directions v back; E[v v^T] = diag(p) - p p^T, the Fisher matrix of a softmax."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:  # weight gradients would be computed for nothing
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            logits = model(batch.detach().clone().requires_grad_())
            p = (logits.detach() / TEMPERATURE).softmax(1)
            if p.shape[1] == 1:  # every rewrite would look harmless
                raise ModelError("the model returns one number, not classes; pass --factors plain")
            if not logits.requires_grad:
                return
            for draw in range(DRAWS):
                signs = torch.randint(0, 2, p.shape, generator=generator).to(p) * 2 - 1
                noise = p.sqrt() * signs
                direction = (noise - p * noise.sum(1, keepdim=True)) / TEMPERATURE
                logits.backward(direction, retain_graph=draw + 1 < DRAWS)
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _finite(name: str, moment: Tensor) -> Tensor:
    if not bool(moment.isfinite().all()):
        raise ModelError(
            f"{name}: activations or gradients are not finite; check the weights and preprocessing"
        )
    return moment


FACTORS = Factors("aware", "best for the outputs on real images (whitened SVD)", aware_metrics)
