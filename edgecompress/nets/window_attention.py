"""The modules of torchvision's Swin v1 for one size of map, on tensors of at most four dimensions.

torchvision cuts windows through tensors of six dimensions, builds the shift mask anew in every pass and
merges patches by slices with a stride. For a fixed size the mask is a constant, the relative position bias
follows from its table alone, and windows and patches are cut by transposes of four dimensions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgecompress.core.types import Size
from edgecompress.errors import ModelError, UnsupportedLayer
from edgecompress.nets.attention import attend

_SWIN = "torchvision.models.swin_transformer"

_MASKED = -100.0
"""What torchvision adds to the scores of tokens that a shift brought together."""


@dataclass(frozen=True)
class Windows:
    """How a map is cut: padded at the right and the bottom to whole windows, rolled by the shift."""

    size: Size
    window: Size
    shift: Size
    """Zero along an axis that one window covers."""

    @property
    def padded(self) -> Size:
        """Height and width in whole windows."""
        (height, width), (rows, columns) = self.size, self.window
        return -(-height // rows) * rows, -(-width // columns) * columns

    @property
    def tokens(self) -> int:
        """Tokens of one window."""
        return self.window[0] * self.window[1]


class WindowAttention(nn.Module):
    """Multi-head self-attention within windows of a map (N, height, width, channels) of one size.

    `table` (offsets, heads) is the relative position bias and `index` says which of its rows two tokens of a
    window take: exporters fold both into a constant, and the table can still be trained. The other arguments
    are those of `Attention`.
    """

    index: Tensor
    mask: Tensor | None

    def __init__(
        self,
        qkv: nn.Module,
        proj: nn.Module,
        *,
        heads: int,
        head_dim: int,
        scale: float,
        windows: Windows,
        table: nn.Parameter,
        index: Tensor,
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.proj = proj
        self.heads = heads
        self.head_dim = head_dim
        self.scale = scale
        self.windows = windows
        self.table = table
        mask = _shift_mask(windows).to(table) if any(windows.shift) else None
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("mask", mask, persistent=False)

    @property
    def bias(self) -> Tensor:
        """What is added to the scores (1 or windows, heads, tokens, tokens): position bias and shift mask."""
        tokens = self.windows.tokens
        position = self.table.index_select(0, self.index).T.reshape(1, self.heads, tokens, tokens)
        return position if self.mask is None else position + self.mask

    def forward(self, x: Tensor) -> Tensor:
        """Returns a map of the same shape.

        Raises:
            ModelError: the map has another size than the one the module was made for.
        """
        if x.shape[1:3] != self.windows.size:
            raise ModelError(f"got a map of {tuple(x.shape[1:3])}, made for {self.windows.size}")
        tokens = cut(x, self.windows)
        # one image is what gets exported; more need the windows' masks once per image
        bias = self.bias
        if x.shape[0] > 1 and bias.shape[0] > 1:
            bias = bias.repeat(x.shape[0], 1, 1, 1)
        mixed, _ = attend(
            self.qkv(tokens), heads=self.heads, head_dim=self.head_dim, scale=self.scale, bias=bias
        )
        return join(self.proj(mixed), self.windows)


def cut(x: Tensor, windows: Windows) -> Tensor:
    """Cuts maps (N, height, width, channels) into (N * windows, tokens, channels)."""
    (height, width), (rows, columns), channels = windows.padded, windows.window, x.shape[-1]
    below, right = height - windows.size[0], width - windows.size[1]
    if below or right:
        x = F.pad(x, (0, 0, 0, right, 0, below))
    x = _rolled(_rolled(x, windows.shift[0], dim=1), windows.shift[1], dim=2)
    strips = x.reshape(-1, rows, width // columns, columns * channels)
    return strips.transpose(1, 2).reshape(-1, windows.tokens, channels)


def join(tokens: Tensor, windows: Windows) -> Tensor:
    """Puts windows back into maps: the inverse of `cut`."""
    (height, width), (rows, columns), channels = windows.padded, windows.window, tokens.shape[-1]
    strips = tokens.reshape(-1, width // columns, rows, columns * channels).transpose(1, 2)
    x = strips.reshape(-1, height, width, channels)
    x = _rolled(_rolled(x, -windows.shift[0], dim=1), -windows.shift[1], dim=2)
    return x if windows.size == windows.padded else x[:, : windows.size[0], : windows.size[1]]


def _rolled(x: Tensor, shift: int, *, dim: int) -> Tensor:
    """Moves a map by `shift` places towards the start; what leaves there comes in at the end."""
    if shift == 0:
        return x
    shift %= x.shape[dim]
    return torch.cat([x.narrow(dim, shift, x.shape[dim] - shift), x.narrow(dim, 0, shift)], dim=dim)


def is_shifted_window(module: nn.Module) -> bool:
    """Tells whether a module is the attention of torchvision's Swin v1; that of v2 is another."""
    return _is_of_swin(module, "ShiftedWindowAttention")


def is_patch_merging(module: nn.Module) -> bool:
    """Tells whether a module merges patches in torchvision's Swin v1; that of v2 is another."""
    return _is_of_swin(module, "PatchMerging")


def _is_of_swin(module: nn.Module, name: str) -> bool:
    return (type(module).__module__, type(module).__qualname__) == (_SWIN, name)


def from_shifted_window(module: nn.Module, size: Size) -> WindowAttention:
    """Returns what computes the same as a window attention of torchvision on maps of `size`.

    The linear layers and the table are taken over, not copied; dropout is left out.

    Raises:
        UnsupportedLayer: it is another module.
    """
    if not is_shifted_window(module):
        raise UnsupportedLayer(f"{type(module).__name__} is not the attention of torchvision's Swin v1")
    swin = cast(Any, module)
    windows = _windows(size, tuple(swin.window_size), tuple(swin.shift_size))
    head_dim = swin.qkv.in_features // swin.num_heads
    attention = WindowAttention(
        swin.qkv,
        swin.proj,
        heads=swin.num_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        windows=windows,
        table=swin.relative_position_bias_table,
        index=swin.relative_position_index.flatten().clone(),
    )
    return attention.train(module.training)


def _windows(size: Size, window: Size, shift: Size) -> Windows:
    padded = Windows(size, window, shift).padded
    needed = (0 if window[0] >= padded[0] else shift[0], 0 if window[1] >= padded[1] else shift[1])
    return Windows(size, window, needed)


def _shift_mask(windows: Windows) -> Tensor:
    """Returns (windows, 1, tokens, tokens): what to add so that only tokens of one region mix.

    Rolling puts the first rows and columns behind the last; a window there holds several regions.
    """
    rows = _regions(windows.padded[0], windows.window[0], windows.shift[0])
    columns = _regions(windows.padded[1], windows.window[1], windows.shift[1])
    regions = 3 * rows[:, None] + columns
    labels = cut(regions[None, :, :, None], Windows(windows.padded, windows.window, (0, 0)))
    apart = labels != labels.transpose(1, 2)  # (windows, tokens, tokens)
    return torch.where(apart[:, None], _MASKED, 0.0)


def _regions(length: int, window: int, shift: int) -> Tensor:
    """Labels places along one rolled axis: before the last window, in it, come round from the start."""
    place = torch.arange(length)
    if shift == 0:
        return torch.zeros_like(place)
    return (place >= length - window).long() + (place >= length - shift).long()


class PatchMerging(nn.Module):
    """Joins every 2x2 patch of a map (N, height, width, channels) to one token, and narrows it."""

    def __init__(self, norm: nn.Module, reduction: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.reduction = reduction

    def forward(self, x: Tensor) -> Tensor:
        """Returns a map of half the size; one row or column of zeros is added to an odd size."""
        if x.shape[1] % 2 or x.shape[2] % 2:
            x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        images, height, width, channels = x.shape
        strips = x.reshape(-1, 2, width // 2, 2 * channels).transpose(1, 2)
        merged = self.norm(strips.reshape(images, height // 2, width // 2, 4 * channels))
        return cast(Tensor, self.reduction(merged))


def from_patch_merging(module: nn.Module) -> PatchMerging:
    """Returns what computes the same as torchvision's module, with copies of its weights.

    torchvision puts the four tokens of a patch column by column, here they come row by row; the weights
    are put in that order instead.

    Raises:
        UnsupportedLayer: it is another module, or has other layers inside.
    """
    if not is_patch_merging(module):
        raise UnsupportedLayer(f"{type(module).__name__} does not merge patches in torchvision's Swin v1")
    norm, reduction = copy.deepcopy(module.norm), copy.deepcopy(module.reduction)
    first = reduction[0] if isinstance(reduction, nn.Sequential) else reduction  # of a low-rank chain
    if not isinstance(norm, nn.LayerNorm) or not isinstance(first, nn.Linear):
        raise UnsupportedLayer("PatchMerging has other layers than a layer norm and a linear layer")
    order = torch.arange(first.in_features).reshape(2, 2, -1).transpose(0, 1).flatten()
    with torch.no_grad():
        for parameter in (first.weight, *norm.parameters()):
            parameter.copy_(parameter[..., order])
    return PatchMerging(norm, cast(nn.Module, reduction)).train(module.training)
