"""Counts what each layer of a model costs for one image: parameters, multiply-accumulates, bytes.

One forward pass is watched: every matrix product and convolution that torch executes is booked on the
innermost module running at that moment, so attention written with plain functions is counted too.
Norms, activations, pooling and additions count as no multiply-accumulates.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgecompress.core.costs import BYTES_PER_WEIGHT
from edgecompress.core.results import LayerCost
from edgecompress.nets.watching import watched

_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def profile(module: nn.Module, input_shape: tuple[int, int, int]) -> tuple[LayerCost, ...]:
    """Returns one row per module that multiplies or holds weights, in the order they run.

    The module runs once on a zero image in eval mode and is left as it was. A weight used in several
    places is counted where it is first used. Layers that never run come last, with no
    multiply-accumulates; those whose weights an attention module reads without calling them are
    part of that module's row.
    """
    seen = _watch(module, input_shape)
    names = {id(child): name for name, child in module.named_modules()}
    order = [*seen, *(child for child in module.modules() if child not in seen)]
    owners = {child: _owner(names[id(child)], child, module, seen) for child in order}
    params = _count_params(order, owners)
    rows = (_row(names[id(child)], child, params[child], seen.get(child, _Seen())) for child in order)
    return tuple(row for row in rows if row.params or row.macs)


def total_params(module: nn.Module) -> int:
    """Returns the number of weights, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def total_macs(rows: tuple[LayerCost, ...]) -> int:
    """Returns the multiply-accumulates of all rows."""
    return sum(row.macs for row in rows)


@dataclass
class _Seen:
    """What was seen of one module during the pass."""

    macs: int = 0
    is_attention: bool = False
    in_shape: tuple[int, ...] = ()
    out_shape: tuple[int, ...] = ()
    out_elements: int = 0


@dataclass
class _Watch:
    """The modules running now, innermost last, and what each has done."""

    running: list[nn.Module] = field(default_factory=list)
    seen: dict[nn.Module, _Seen] = field(default_factory=dict)

    def enter(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Notes that a module starts."""
        self.running.append(module)
        seen = self.seen.setdefault(module, _Seen())
        seen.in_shape = seen.in_shape or _shape((args, kwargs))

    def leave(self, module: nn.Module, args: object, output: object) -> None:
        """Notes that a module ends."""
        self.running.pop()
        seen = self.seen[module]
        seen.out_shape = seen.out_shape or _shape(output)
        seen.out_elements += sum(leaf.numel() for leaf in tree_leaves(output)[:1] if isinstance(leaf, Tensor))

    def book(self, macs: int, *, is_attention: bool) -> None:
        """Books a product on the innermost module."""
        seen = self.seen[self.running[-1]]
        seen.macs += macs
        seen.is_attention |= is_attention


def _shape(tree: object) -> tuple[int, ...]:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    shape = tuple(tensors[0].shape) if tensors else ()
    return shape[1:] if shape[:1] == (1,) else shape  # the batch of one image goes without saying


def _watch(module: nn.Module, input_shape: tuple[int, int, int]) -> dict[nn.Module, _Seen]:
    watch = _Watch()
    parameter = next(module.parameters(), torch.empty(0))
    image = torch.zeros((1, *input_shape), dtype=parameter.dtype, device=parameter.device)
    with (
        _eval_mode(module),
        _plain_attention(),
        watched(module, watch.enter, watch.leave),
        torch.no_grad(),
        _Counter(watch),
    ):
        module(image)
    return watch.seen


@contextlib.contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    training = [child for child in module.modules() if child.training]
    module.eval()
    try:
        yield
    finally:
        for child in training:
            child.training = True


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Keeps torch from running a whole attention layer as one operator, which would hide its products."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Books every product torch executes."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        kwargs = kwargs or {}
        count = _MACS_OF.get(func.overloadpacket)
        if count is None:
            with self:  # under inference mode, operators made of others arrive whole
                parts = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if parts is NotImplemented else parts
        output = func(*args, **kwargs)
        self.watch.book(count(args, output), is_attention=func.overloadpacket in _BETWEEN_ACTIVATIONS)
        return output


Args = tuple[Tensor, ...]


def _mm_macs(args: Args, output: Tensor) -> int:
    return output.numel() * args[0].shape[-1]


def _addmm_macs(args: Args, output: Tensor) -> int:
    return _mm_macs(args[1:], output)


def _conv_macs(args: tuple[Tensor, Tensor, object, object, object, object, bool], output: Tensor) -> int:
    image, weight, transposed = args[0], args[1], args[6]
    positions = (image if transposed else output).shape
    return positions[0] * math.prod(positions[2:]) * weight.numel()


def _attention_macs(args: Args, output: tuple[Tensor, ...]) -> int:
    query, key, value = args[:3]
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    return scores * (query.shape[-1] + value.shape[-1])


_aten = torch.ops.aten
_WITH_A_WEIGHT: dict[object, Callable[..., int]] = {
    _aten.mm: _mm_macs,
    _aten.mv: _mm_macs,
    _aten.dot: _mm_macs,
    _aten.addmm: _addmm_macs,
    _aten.addmv: _addmm_macs,
    _aten.convolution: _conv_macs,
}
_BETWEEN_ACTIVATIONS: dict[object, Callable[..., int]] = {
    _aten.bmm: _mm_macs,
    _aten.baddbmm: _addmm_macs,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention_macs,
    _aten._scaled_dot_product_flash_attention: _attention_macs,
    _aten._scaled_dot_product_efficient_attention: _attention_macs,
    _aten._scaled_dot_product_cudnn_attention: _attention_macs,
}
_MACS_OF = _WITH_A_WEIGHT | _BETWEEN_ACTIVATIONS


def _owner(name: str, child: nn.Module, module: nn.Module, seen: dict[nn.Module, _Seen]) -> nn.Module:
    """Returns the module whose row holds the weights of `child`."""
    if child in seen:
        return child
    while name:
        name = name.rpartition(".")[0]
        above = module.get_submodule(name)
        if above in seen:
            return above if seen[above].is_attention else child
    return child


def _count_params(order: list[nn.Module], owners: dict[nn.Module, nn.Module]) -> dict[nn.Module, int]:
    params, counted = dict.fromkeys(order, 0), set[int]()
    for child in order:
        for parameter in child.parameters(recurse=False):
            if id(parameter) not in counted:
                counted.add(id(parameter))
                params[owners[child]] += parameter.numel()
    return params


def _row(name: str, module: nn.Module, params: int, seen: _Seen) -> LayerCost:
    return LayerCost(
        name=name,
        kind=_kind(module, seen),
        params=params,
        macs=seen.macs,
        weight_bytes=params * BYTES_PER_WEIGHT,
        activation_bytes=seen.out_elements * BYTES_PER_WEIGHT,
        in_shape=seen.in_shape,
        out_shape=seen.out_shape,
        detail=_detail(module),
    )


def _kind(module: nn.Module, seen: _Seen) -> str:
    if isinstance(module, nn.Conv2d):
        return "conv2d"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, _NORMS):
        return "norm"
    return "attention" if seen.is_attention else type(module).__name__


def _detail(module: nn.Module) -> str:
    if isinstance(module, nn.MultiheadAttention):
        return f"{module.num_heads} heads"
    if not isinstance(module, nn.Conv2d):
        return ""
    words = ["x".join(map(str, module.kernel_size))]
    if set(module.stride) != {1}:
        words.append(f"stride {_short(module.stride)}")
    if module.groups != 1:
        words.append(f"groups {module.groups}")
    return ", ".join(words)


def _short(extents: tuple[int, ...]) -> str:
    return str(extents[0]) if len(set(extents)) == 1 else "x".join(map(str, extents))
