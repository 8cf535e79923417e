"""Makes a copy of a network that exporters translate well and edge runtimes run fast.

What the copy computes differs by rounding only. Attention is written in plain products, batch norms are
folded, padded max pools become zero padding and a plain pool, shortcuts that pick pixels become convolutions,
and what only matters in training is gone.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgecompress.nets.attention_rewrite import rewrite_attention_
from edgecompress.nets.folding import exchange_, fold_batch_norms_
from edgecompress.nets.modules import zero_image
from edgecompress.nets.subsampling import rewrite_subsampling_

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

_LIBRARY_DROPOUTS = (
    ("torchvision", "StochasticDepth"),
    ("torchvision", "DropBlock2d"),
    ("timm", "DropPath"),
    ("timm", "DropBlock2d"),
    ("timm", "PatchDropout"),
)
"""Package and class of modules that pass their input on in eval mode."""


def export_ready(network: nn.Module, input_shape: tuple[int, int, int]) -> nn.Module:
    """Returns a copy of a network, in eval mode, rewritten for export at one image size.

    Rewritten are self-attention of torch (with images first), of torchvision's ViT and Swin v1 and of timm's
    vision transformers; see also `fold_batch_norms_`. Modules of other kinds stay. The copy shares no
    tensor with the network, which is left alone.
    """
    ready = copy.deepcopy(network).eval()
    # litert-torch takes weights as they lie in memory, and writes channels-last ones in the wrong order
    ready.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    exchange_(ready, {module: nn.Identity() for module in ready.modules() if _is_dropout(module)})
    rewrite_attention_(ready, input_shape)
    fold_batch_norms_(ready, input_shape)
    _rewrite_pools_(ready, input_shape)
    rewrite_subsampling_(ready, input_shape)
    return ready.eval()


def _is_dropout(module: nn.Module) -> bool:
    kind = type(module)  # a subclass may drop in eval mode too
    return kind in _DROPOUTS or (kind.__module__.partition(".")[0], kind.__name__) in _LIBRARY_DROPOUTS


# Max pools


def _rewrite_pools_(network: nn.Module, input_shape: tuple[int, int, int]) -> None:
    """Pads max pools with zeros where that is the same as with minus infinity, as torch does.

    TFLite has an operator that runs fast for zeros only.
    """
    kinds = (module for module in network.modules() if type(module) is nn.MaxPool2d)
    pools = [pool for pool in kinds if not pool.return_indices]
    replaced: dict[nn.Module, nn.Module] = {}
    for pool, pads in _pool_pads(network, pools, zero_image(network, input_shape)).items():
        left, right, top, bottom = next(iter(pads)) or (0, 0, 0, 0)
        if len(pads) == 1 and left + right + top + bottom:
            plain = nn.MaxPool2d(pool.kernel_size, pool.stride, dilation=pool.dilation)
            replaced[pool] = nn.Sequential(nn.ZeroPad2d((left, right, top, bottom)), plain)
    exchange_(network, replaced)


@torch.no_grad()
def _pool_pads(
    network: nn.Module, pools: list[nn.MaxPool2d], image: Tensor
) -> dict[nn.MaxPool2d, set[tuple[int, int, int, int] | None]]:
    """Returns the zeros each pool needs at the left, right, top and bottom; None where zeros will not do.

    A pool has several entries when it runs on maps of several sizes.
    """
    found: dict[nn.MaxPool2d, set[tuple[int, int, int, int] | None]] = {}
    signs = _Signs()

    def note(pool: nn.MaxPool2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pads = (*_pads(pool, inputs[0], output, -1), *_pads(pool, inputs[0], output, -2))
        found.setdefault(pool, set()).add(pads if signs.are_known(inputs[0]) else None)

    handles = [pool.register_forward_hook(note) for pool in pools]
    try:
        with signs:
            network(image)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _pads(pool: nn.MaxPool2d, x: Tensor, output: Tensor, axis: int) -> tuple[int, int]:
    """Returns the zeros before and after an axis that make an unpadded pool give as many outputs.

    The first window starts where it did; the last one may reach beyond the map with `ceil_mode`.
    """
    kernel, stride, before, dilation = (
        value if isinstance(value, int) else value[axis]
        for value in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    )
    reach = (output.shape[axis] - 1) * stride + dilation * (kernel - 1) + 1
    return before, max(0, reach - before - x.shape[axis])


_NEVER_NEGATIVE = ("relu", "sigmoid", "hardsigmoid", "_softmax", "abs", "exp", "softplus")
_KEEP_SIGN = (
    "add",
    "mul",
    "cat",
    "clone",
    "mean",
    "max_pool2d_with_indices",
    "avg_pool2d",
    "_adaptive_avg_pool2d",
)
_BOUNDED_BELOW = ("hardtanh", "clamp", "clamp_min")
"""Operators of torch by what they say about the sign of their results; the last ones by an argument."""


class _Signs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows of which tensors no value can be negative, whatever the image.

    That is noted per memory block, so it holds for views too, until something writes to the block.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[int, Tensor] = {}

    def are_known(self, x: Tensor) -> bool:
        """Tells whether no value of a tensor can be negative."""
        return _block(x) in self.known

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        self._note(
            _tensors((args, kwargs)),
            _tensors(output),
            writes=func._schema.is_mutable,
            known=self._never_negative(func._schema.name, args, kwargs),
        )
        return output

    def _never_negative(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        name = name.removeprefix("aten::").rstrip("_")  # an underscore at the end: in place
        if name in _BOUNDED_BELOW:
            lowest = kwargs.get("min", args[1] if len(args) > 1 else None)
            return isinstance(lowest, int | float) and lowest >= 0
        if name in _KEEP_SIGN:
            numbers = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, int | float)]
            return all(map(self.are_known, _tensors((args, kwargs)))) and min(numbers, default=0) >= 0
        return name in _NEVER_NEGATIVE

    def _note(self, read: list[Tensor], made: list[Tensor], *, writes: bool, known: bool) -> None:
        """Notes an operator's results; those that are views of what it read say nothing new."""
        blocks = {_block(x) for x in read}
        for x in made:  # operators that write hand out what they wrote to
            if known and x.nbytes == x.untyped_storage().nbytes():
                self.known[_block(x)] = x  # held, or the memory could be given to another tensor
            elif writes or _block(x) not in blocks:
                self.known.pop(_block(x), None)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _block(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
