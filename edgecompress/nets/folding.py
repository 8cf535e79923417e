"""Folds batch norms into the layers before them: exact in eval mode, and one operator less each."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgecompress.errors import UnsupportedLayer
from edgecompress.nets.modules import Sum, block_layers, op_of, replace_, zero_image

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d

_WITH_ACTIVATION = "timm.layers.norm_act.BatchNormAct2d"
"""A batch norm with the activation after it inside."""

_PROBE_TOLERANCE = 1e-4


def fold_batch_norms_(network: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """Folds every batch norm whose input is the output of one layer, and returns how many.

    The layer is a convolution or linear layer, the last one of a low-rank chain, or the last ones of all
    branches of a `Sum`; nothing else may use its output, and both run once per image. The batch norm
    becomes `nn.Identity`. Others stay. The network is put in eval mode: folded, it cannot be trained.
    """
    network.eval()
    replaced: dict[nn.Module, nn.Module] = {}
    for norm, layers in _foldable(_watched(network, zero_image(network, input_shape)), network):
        scale, shift = scale_and_shift(norm)
        for layer in layers:
            _scale_(layer, scale)
        _shift_(layers[0], shift)
        replaced[norm] = _rest_of(norm)
        _neutralise_(norm)
    exchange_(network, replaced)
    network.eval()
    return len(replaced)


def exchange_(network: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    """Puts modules in the place of others, under every name those have."""
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if name and module in replaced:
            replace_(network, name, replaced[module])


# What flows where


@dataclass
class _Watch:
    """Which module made a tensor, what else reads it, and what each batch norm got."""

    makers: dict[int, nn.Module] = field(default_factory=dict)
    uses: Counter[int] = field(default_factory=Counter)
    """How often a layer's output is read, by its id; a batch norm counts once, whatever it does inside."""
    calls: Counter[nn.Module] = field(default_factory=Counter)
    inputs: dict[nn.Module, Tensor] = field(default_factory=dict)
    in_norm: bool = False
    alive: list[object] = field(default_factory=list)
    """An id may be given again once its tensor is gone."""

    def run(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Notes what a module gets; a call `module(input=x)` has no positional input."""
        self.calls[module] += 1
        if inputs:
            self.inputs[module] = inputs[0]

    def made(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Notes that a layer has run."""
        self.run(module, inputs)
        self.makers[id(output)] = module
        self.alive.append(output)

    def enter(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Notes that a batch norm starts."""
        self.run(norm, inputs)
        self.use(inputs)
        self.in_norm = True

    def leave(self, norm: nn.Module, inputs: object, output: object) -> None:
        """Notes that a batch norm ends."""
        self.in_norm = False

    def use(self, tree: object) -> None:
        """Notes that something reads tensors."""
        if not self.in_norm:
            self.uses.update(id(leaf) for leaf in tree_leaves(tree) if id(leaf) in self.makers)


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what every operator reads, be it called by a module or not."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        self.watch.use((args, kwargs))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _watched(network: nn.Module, image: Tensor) -> _Watch:
    watch = _Watch()
    with _hooks(network, watch), _Uses(watch):
        output = network(image)
    watch.use(output)
    return watch


@contextlib.contextmanager
def _hooks(network: nn.Module, watch: _Watch) -> Iterator[None]:
    handles = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | Sum):
            handles.append(module.register_forward_hook(watch.made))
        if isinstance(module, BatchNorm):
            handles.append(module.register_forward_pre_hook(watch.enter))
            handles.append(module.register_forward_hook(watch.leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# What can be folded


def _foldable(watch: _Watch, network: nn.Module) -> Iterator[tuple[BatchNorm, list[nn.Module]]]:
    """Yields batch norms with the layers to scale; the shift goes to the first of these."""
    owners = Counter(id(p) for module in network.modules() for p in module.parameters(recurse=False))
    for norm, x in watch.inputs.items():
        maker = watch.makers.get(id(x))
        if maker is None or not isinstance(norm, BatchNorm) or not knows_statistics(norm):
            continue
        layers = [chain[-1] for chain in block_layers(maker)] if isinstance(maker, Sum) else [maker]
        run_once = all(watch.calls[module] == 1 for module in (norm, maker, *layers))
        own = all(owners[id(p)] == 1 for layer in layers for p in layer.parameters())
        only_here = watch.uses[id(x)] == 1
        if run_once and own and only_here and all(_folds(norm, layer, x, watch) for layer in layers):
            yield norm, layers


def knows_statistics(norm: BatchNorm) -> bool:
    """Tells whether a batch norm computes, in eval mode, what `scale_and_shift` says."""
    plain = type(norm).forward is nn.BatchNorm2d.forward or _has_activation(norm)
    return plain and norm.running_mean is not None


def _has_activation(norm: nn.Module) -> bool:
    return f"{type(norm).__module__}.{type(norm).__qualname__}" == _WITH_ACTIVATION


def _folds(norm: BatchNorm, layer: nn.Module, output: Tensor, watch: _Watch) -> bool:
    """Tells whether scaling and shifting the layer's weights does what the batch norm does."""
    dims = {nn.Conv2d: 4, nn.Linear: 2}  # of outputs whose second one are the channels
    if output.ndim != next((n for kind, n in dims.items() if isinstance(layer, kind)), None):
        return False
    if "weight" not in dict(layer.named_parameters(recurse=False)):  # computed from other parameters
        return False
    try:
        op_of(layer)
    except UnsupportedLayer:
        return layer in watch.inputs and _probed(norm, layer, watch.inputs[layer])
    return True


@torch.no_grad()
def _probed(norm: BatchNorm, layer: nn.Module, like: Tensor) -> bool:
    """Folds into a copy of a layer with a forward of its own, and compares on random numbers.

    Convolutions that pad in ways of their own pass, those that change their weights first do not.
    """
    x = torch.randn(like.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(like)
    scale, shift = scale_and_shift(norm)
    expected = layer(x) * scale.to(x)[:, None, None] + shift.to(x)[:, None, None]
    trial = copy.deepcopy(layer)
    _scale_(trial, scale)
    _shift_(trial, shift)
    error = (trial(x) - expected).abs().max()
    return bool(error <= _PROBE_TOLERANCE * expected.abs().max())


# The algebra


def scale_and_shift(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Returns a and b of y = a x + b, per channel, in float64."""
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    scale = (variance.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = norm.weight.detach().double() * scale
    shift = -mean.double() * scale
    return scale, shift if norm.bias is None else shift + norm.bias.detach().double()


@torch.no_grad()
def _scale_(layer: nn.Module, scale: Tensor) -> None:
    """Multiplies the outputs of a layer, channel by channel."""
    for parameter in layer.parameters(recurse=False):
        each = scale.reshape(-1, *[1] * (parameter.ndim - 1))
        parameter.copy_(parameter.double() * each)


@torch.no_grad()
def _shift_(layer: nn.Module, shift: Tensor) -> None:
    """Adds to the outputs of a layer, channel by channel."""
    weight, bias = layer.get_parameter("weight"), cast(nn.Parameter | None, layer.bias)
    total = shift if bias is None else bias.double() + shift
    layer.bias = nn.Parameter(total.to(weight.dtype), requires_grad=weight.requires_grad)


def _rest_of(norm: BatchNorm) -> nn.Module:
    """Returns what stays of a batch norm that was folded."""
    return nn.Sequential(*norm.children()) if _has_activation(norm) else nn.Identity()


def _neutralise_(norm: BatchNorm) -> None:
    """Makes a batch norm compute nothing, for networks that also reach it by a list of their own.

    Its tensors are exchanged, not written to: other norms may share them.
    """
    norm.running_mean = torch.zeros_like(cast(Tensor, norm.running_mean))
    norm.running_var = torch.full_like(cast(Tensor, norm.running_var), 1 - norm.eps)
    norm.register_parameter("weight", None)
    norm.register_parameter("bias", None)
