"""Follows the outputs of linear layers through one forward pass, to the linear layers that read them.

What lies between the two may be written as modules or as plain functions: operators are watched, not
modules. Where an operator maps zeros to zeros is tried with zeros, not looked up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from edgecompress.nets.modules import zero_image
from edgecompress.nets.watching import watched

_PLAIN = ("hardswish", "dropout", "alias", "detach", "_to_copy", "lift_fresh")
"""Operators that treat every number alone, as torch's tag `pointwise` says of the others."""

_NO_ACTIVATION = ("add", "sub", "rsub", "mul", "div", "neg", "clone", *_PLAIN[1:])
"""Operators that alone make no MLP of two linear layers."""

_PRODUCTS = ("bmm", "baddbmm", "_scaled_dot_product")
"""Products of two activations: where these run outside of a known attention, there is an unknown one."""


@dataclass(frozen=True)
class Mark:
    """What is known of a tensor whose last axis are the outputs of a linear layer."""

    maker: nn.Linear
    is_zero: bool = True
    """Whether a zero of the layer is still a zero here."""
    is_active: bool = False
    """Whether an activation lies in between."""


@dataclass
class Flow:
    """What one forward pass shows of linear layers."""

    calls: Counter[nn.Module] = field(default_factory=Counter)
    """How often every module runs, in forward order."""
    readers: dict[nn.Linear, list[tuple[nn.Linear, Mark]]] = field(default_factory=dict)
    """Which linear layers read a layer's outputs."""
    others: dict[nn.Linear, str] = field(default_factory=dict)
    """What else does something with a layer's outputs, after an activation or not."""
    active: set[nn.Linear] = field(default_factory=set)
    """Layers with an activation behind them."""
    read_as_tensors: set[nn.Linear] = field(default_factory=set)
    """Layers whose weights are used without calling them."""
    mixing: dict[nn.Module, None] = field(default_factory=dict)
    """Modules that multiply activations by activations, as attention does, in forward order."""
    input_shapes: dict[nn.Module, torch.Size] = field(default_factory=dict)


@torch.no_grad()
def follow(network: nn.Module, input_shape: tuple[int, int, int]) -> Flow:
    """Runs a network, which must be in eval mode, on a black image and returns what was seen."""
    watch = _Watch(network)
    with torch.inference_mode(False), watched(network, watch.enter, watch.leave), watch:
        output = network(zero_image(network, input_shape))
    for mark in watch.marks_in(output):
        watch.flow.others.setdefault(mark.maker, "is an output of the model")
    return watch.flow


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows which tensors hold the outputs of which layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = Flow()
        self.running: list[nn.Module] = [network]
        self.marks: dict[int, Mark] = {}
        self.alive: list[Tensor] = []  # an id may be given again once its tensor is gone
        layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
        self.owners = {id(p): layer for layer in layers for p in layer.parameters(recurse=False)}

    def enter(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Notes that a module starts."""
        self.flow.calls[module] += 1
        self.running.append(module)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if tensors:
            self.flow.input_shapes[module] = tensors[0].shape
        if isinstance(module, nn.Linear):
            for mark in self.marks_in((args, kwargs)):
                self.flow.readers.setdefault(mark.maker, []).append((module, mark))

    def leave(self, module: nn.Module, args: object, output: object) -> None:
        """Notes that a module ends."""
        self.running.pop()
        if isinstance(module, nn.Linear) and isinstance(output, Tensor):
            self.set(output, Mark(module))

    def marks_in(self, tree: object) -> list[Mark]:
        """Returns the marks of all tensors of a tree."""
        return [self.marks[id(leaf)] for leaf in tree_leaves(tree) if id(leaf) in self.marks]

    def set(self, x: Tensor, mark: Mark | None) -> None:
        """Notes what is known of a tensor."""
        self.marks.pop(id(x), None)
        if mark is not None:
            self.marks[id(x)] = mark
            self.alive.append(x)
            if mark.is_active:
                self.flow.active.add(mark.maker)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        self._note_weights((args, kwargs))
        if not isinstance(self.running[-1], nn.Linear):
            if _name(func).startswith(_PRODUCTS):
                self.flow.mixing[self.running[-1]] = None
            self._note(func, args, kwargs, output)
        return output

    def _note_weights(self, tree: object) -> None:
        owners = {self.owners[id(leaf)] for leaf in tree_leaves(tree) if id(leaf) in self.owners}
        self.flow.read_as_tensors.update(owners - {self.running[-1]})

    def _note(self, func: Any, args: Any, kwargs: Any, output: object) -> None:  # noqa: ANN401  # any operator
        read = self.marks_in((args, kwargs))
        if not read:
            return
        mark = self._passed_on(func, args, kwargs, output)
        does = "combines them with others" if _is_pointwise(func) else "reads them"
        for lost in read if mark is None else ():
            self.flow.others.setdefault(lost.maker, f"{_name(func)} {does}")
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                self.set(leaf, mark)

    def _passed_on(self, func: Any, args: Any, kwargs: Any, output: object) -> Mark | None:  # noqa: ANN401
        """Returns the mark of an operator's result; None where that is no longer one layer's outputs."""
        read = self.marks_in((args, kwargs))
        if not isinstance(output, Tensor) or len({mark.maker for mark in read}) != 1:
            return None
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if _is_pointwise(func) and all(id(x) in self.marks or _is_alike(x) for x in tensors):
            zero = self._keeps_zero(func, args, kwargs)
            active = _name(func) not in _NO_ACTIVATION or any(mark.is_active for mark in read)
            writes_nonzero = func._schema.is_mutable and not zero  # a view of it may be read as well
            return None if writes_nonzero else Mark(read[0].maker, is_zero=zero, is_active=active)
        return read[0] if len(tensors) == 1 and _is_view(tensors[0], output) else None

    def _keeps_zero(self, func: Callable[..., Tensor], args: Any, kwargs: Any) -> bool:  # noqa: ANN401
        """Tries an operator where the layer's outputs are zero, and what became of them may be anything."""

        def probe(leaf: object) -> object:
            if not isinstance(leaf, Tensor):
                return leaf
            mark = self.marks.get(id(leaf))
            is_zero = mark is not None and mark.is_zero
            return leaf.new_tensor([0.0, 0.0] if is_zero else [0.7, -1.3])

        args, kwargs = tree_map(probe, (args, kwargs))
        return not bool(func(*args, **kwargs).any())


def _name(func: Any) -> str:  # noqa: ANN401
    return str(func._schema.name).removeprefix("aten::").rstrip("_")  # an underscore at the end: in place


def _is_pointwise(func: Any) -> bool:  # noqa: ANN401
    return torch.Tag.pointwise in func.tags or _name(func) in _PLAIN


def _is_alike(x: Tensor) -> bool:
    """Tells whether a tensor has one number for all units."""
    return x.ndim == 0 or x.shape[-1] == 1


def _is_view(x: Tensor, view: Tensor) -> bool:
    """Tells whether the last axis of a view is that of the tensor."""
    same_memory = x.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
    if not same_memory or view.ndim == 0 or x.shape[-1] != view.shape[-1]:
        return False
    return x.stride(-1) == view.stride(-1) == 1
