"""Finds, describes, builds and replaces named layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from edgecompress.core.types import Block, Layer, Op, Size
from edgecompress.errors import ModelError, UnsupportedLayer


class Sum(nn.Module):
    """Branches that see the same input; their outputs are added."""

    def __init__(self, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum of the branches."""
        total = self.branches[0](x)
        for branch in self.branches[1:]:
            total = total + branch(x)
        return cast(Tensor, total)


def op_of(module: nn.Module) -> Op:
    """Describes a convolution or linear layer.

    Raises:
        UnsupportedLayer: it is another kind of layer, or pads with something other than zeros.
    """
    for kind, method in ((nn.Linear, "forward"), (nn.Conv2d, "forward"), (nn.Conv2d, "_conv_forward")):
        if isinstance(module, kind) and not _inherits(module, kind, method):
            raise UnsupportedLayer(f"{type(module).__name__} is a {kind.__name__} with a forward of its own")
    if isinstance(module, nn.Linear):
        bias = module.bias is not None
        return Op(kind="linear", inputs=module.in_features, outputs=module.out_features, bias=bias)
    if not isinstance(module, nn.Conv2d):
        raise UnsupportedLayer(f"{type(module).__name__} is neither Conv2d nor Linear")
    if module.padding_mode != "zeros":
        raise UnsupportedLayer(f"pads with {module.padding_mode!r}, only zeros can be rewritten")
    if isinstance(module.padding, str):
        raise UnsupportedLayer(f"padding={module.padding!r} depends on the input; give numbers instead")
    return Op(
        kind="conv2d",
        inputs=module.in_channels,
        outputs=module.out_channels,
        kernel=_pair(module.kernel_size),
        stride=_pair(module.stride),
        padding=_pair(module.padding),
        dilation=_pair(module.dilation),
        groups=module.groups,
        bias=module.bias is not None,
    )


def _inherits(module: nn.Module, kind: type[nn.Module], method: str) -> bool:
    """Tells whether neither the module's class nor the module itself has replaced a method."""
    return getattr(getattr(module, method), "__func__", None) is getattr(kind, method)


def _pair(values: tuple[int, ...]) -> Size:
    return (values[0], values[1])


def module_of(op: Op) -> nn.Module:
    """Builds the layer an operator describes, with random weights.

    Raises:
        UnsupportedLayer: it is neither a convolution nor a linear layer.
    """
    if op.kind == "linear":
        return nn.Linear(op.inputs, op.outputs, bias=op.bias)
    if op.kind != "conv2d":
        raise UnsupportedLayer(f"{op.kind} cannot be built; blocks of plans have conv2d and linear only")
    return nn.Conv2d(
        op.inputs,
        op.outputs,
        op.kernel,
        stride=op.stride,
        padding=op.padding,
        dilation=op.dilation,
        groups=op.groups,
        bias=op.bias,
    )


def block_module(block: Block) -> nn.Module:
    """Builds a block: a chain of layers, or a `Sum` of chains. Weights are random."""
    chains = [nn.Sequential(*(module_of(op) for op in branch)) for branch in block.branches]
    return chains[0] if len(chains) == 1 else Sum(chains)


def block_layers(module: nn.Module) -> list[list[nn.Module]]:
    """Returns the layers of a module made by `block_module`, branch by branch."""
    chains = module.branches if isinstance(module, Sum) else [module]
    return [list(cast(nn.Sequential, chain)) for chain in chains]


def layer_named(model: nn.Module, name: str) -> nn.Module:
    """Returns the module of that dotted name.

    Raises:
        ModelError: there is none; the message lists some that exist.
    """
    try:
        return model.get_submodule(name)
    except AttributeError:
        known = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        raise ModelError(f"layer {name!r}: the model has none of that name; it has {shown}") from None


def replace_(model: nn.Module, name: str, new: nn.Module) -> None:
    """Puts `new` in place of the module of that dotted name."""
    layer_named(model, name)
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


def weight_of(module: nn.Module) -> Tensor:
    """Returns a layer's weight as a detached (out, in / groups, kh, kw) tensor; 1 x 1 for a linear layer."""
    weight = cast(Tensor, module.weight).detach()
    return weight[:, :, None, None] if weight.ndim == 2 else weight


def find_layers(
    model: nn.Module, names: Iterable[str], input_shape: tuple[int, int, int]
) -> tuple[tuple[Layer, ...], tuple[tuple[str, str], ...]]:
    """Returns the named layers in forward order with their map sizes, and those left out with a reason.

    Left out are layers no description fits, layers the forward pass does not call as modules, layers
    it calls more than once (one rewrite cannot serve two inputs of unlike statistics), layers that share
    their weights (rewriting one of them saves none) and layers in whose place nothing else can stand.
    """
    wanted = dict.fromkeys(names)
    shapes = _input_shapes(model, wanted, input_shape)
    order = [name for name in shapes if name in wanted] + [name for name in wanted if name not in shapes]
    shared = _shared_weights(model)
    layers, skipped = [], []
    for name in order:
        try:
            _check_own_weight(layer_named(model, name), shared)
            layers.append(_described(name, layer_named(model, name), shapes.get(name, [])))
        except UnsupportedLayer as error:
            skipped.append((name, str(error)))
    stuck = _irreplaceable(model, [layer.name for layer in layers], zero_image(model, input_shape))
    return tuple(layer for layer in layers if layer.name not in stuck), (*skipped, *stuck.items())


def _shared_weights(model: nn.Module) -> set[int]:
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return {weight for weight, count in owners.items() if count > 1}


def _check_own_weight(layer: nn.Module, shared: set[int]) -> None:
    if id(getattr(layer, "weight", None)) in shared:
        raise UnsupportedLayer("shares its weights with another layer")


def _described(name: str, module: nn.Module, shapes: list[torch.Size]) -> Layer:
    op = op_of(module)
    if len(shapes) != 1:
        times = f"called {len(shapes)} times" if shapes else "never called as layer(x)"
        raise UnsupportedLayer(f"is {times} in one forward pass")
    shape = shapes[0]
    if op.kind == "linear":
        return Layer(name=name, op=op, in_size=(shape[:-1].numel(), 1))
    if len(shape) != 4 or shape[0] != 1:
        raise UnsupportedLayer(f"gets a map of shape {tuple(shape)} for one image")
    return Layer(name=name, op=op, in_size=(shape[-2], shape[-1]))


@torch.no_grad()
def _input_shapes(
    model: nn.Module, names: Iterable[str], input_shape: tuple[int, int, int]
) -> dict[str, list[torch.Size]]:
    shapes: dict[str, list[torch.Size]] = {}

    def record(name: str, inputs: tuple[Tensor, ...]) -> None:
        shapes.setdefault(name, []).extend(x.shape for x in inputs[:1])  # none in a call layer(input=x)

    layers = {name: layer_named(model, name) for name in names}
    handles = [
        layer.register_forward_pre_hook(lambda _, x, name=name: record(name, x))
        for name, layer in layers.items()
    ]
    try:
        model(zero_image(model, input_shape))
    except RuntimeError as error:
        raise ModelError(f"the model does not run on a {input_shape} image: {_first_line(error)}") from None
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _irreplaceable(model: nn.Module, names: list[str], image: Tensor) -> dict[str, str]:
    """Returns the layers in whose place nothing else can stand, each with the reason.

    Some models read attributes of a layer (`x.view(-1, self.fc.in_features)`), and some reach it by
    a second name or a list of their own, so that a layer put at its name would never run.
    """
    try:
        passed_by = set(names) - _called_in_place(model, names, image)
    except (AttributeError, TypeError) as error:
        if len(names) == 1:
            return {names[0]: f"the model needs this very layer: {_first_line(error)}"}
        half = len(names) // 2
        return _irreplaceable(model, names[:half], image) | _irreplaceable(model, names[half:], image)
    return {name: "the model also reaches it by another name" for name in names if name in passed_by}


@torch.no_grad()
def _called_in_place(model: nn.Module, names: list[str], image: Tensor) -> set[str]:
    """Puts a wrapper in the place of every layer for one forward pass and returns which ones ran."""
    layers = {name: layer_named(model, name) for name in names}
    called: set[str] = set()
    try:
        for name, layer in layers.items():
            wrapper = nn.Sequential(layer)
            wrapper.register_forward_pre_hook(lambda *_, name=name: called.add(name))
            replace_(model, name, wrapper)
        model(image)
    finally:
        for name, layer in layers.items():
            replace_(model, name, layer)
    return called


@torch.no_grad()
def find_batch_norms(
    model: nn.Module, names: Iterable[str], input_shape: tuple[int, int, int]
) -> dict[str, nn.BatchNorm2d]:
    """Returns the batch norm that directly takes each named layer's output, where there is one.

    A batch norm that runs more than once does not count: its statistics are not one layer's.
    """
    calls: Counter[nn.Module] = Counter()
    made: dict[int, str] = {}
    alive: list[Tensor] = []  # an id may be reused once its tensor is gone
    found: dict[str, nn.BatchNorm2d] = {}

    def note(name: str, output: Tensor) -> None:
        made[id(output)] = name
        alive.append(output)

    def meet(norm: nn.BatchNorm2d, x: Tensor) -> None:
        calls[norm] += 1
        if id(x) in made and norm.running_mean is not None:
            found[made[id(x)]] = norm

    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    hooks = [
        norm.register_forward_pre_hook(lambda m, x: meet(cast(nn.BatchNorm2d, m), x[0])) for norm in norms
    ]
    hooks += [
        layer_named(model, name).register_forward_hook(lambda _, __, y, name=name: note(name, y))
        for name in names
    ]
    try:
        model(zero_image(model, input_shape))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: norm for name, norm in found.items() if calls[norm] == 1}


def zero_image(model: nn.Module, input_shape: tuple[int, int, int]) -> Tensor:
    """Returns one black image of the model's own dtype."""
    parameter = next(model.parameters(), None)
    dtype = torch.float32 if parameter is None else parameter.dtype
    return torch.zeros(1, *input_shape, dtype=dtype)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
