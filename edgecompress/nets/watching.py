"""Runs functions before and after every module of a network for as long as a block lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import nn

Enter = Callable[[nn.Module, tuple[object, ...], dict[str, object]], None]
"""Gets a module that starts, with its arguments."""
Leave = Callable[[nn.Module, tuple[object, ...], object], None]
"""Gets a module that ended, its arguments and its output."""


@contextlib.contextmanager
def watched(network: nn.Module, enter: Enter, leave: Leave) -> Iterator[None]:
    """Calls `enter` and `leave` for the network and each module in it; no hook is left behind."""
    handles = []
    for module in network.modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
