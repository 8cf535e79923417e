"""Runs networks on many batches in step, so that a layer can be changed before any batch goes past it.

Repairing layers in forward order needs, at every layer, the inputs all images have there *after* the
repair of the layers before. Running the network anew for each layer costs a square; keeping one
forward pass per batch in flight, each paused at the same layer, costs one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from edgecompress.errors import ModelError
from edgecompress.nets.modules import layer_named

Visit = Callable[[str, list[list[Tensor]]], None]
"""Gets a layer's name and its inputs, one list per network, one tensor per batch."""


@torch.no_grad()
def run_in_step(
    networks: Sequence[nn.Module], names: Sequence[str], batches: Sequence[Tensor], visit: Visit
) -> None:
    """Calls `visit` once per named layer, in forward order, when every pass stands before that layer.

    All networks must hold the named layers and reach them in the same order. What `visit` changes in
    a layer counts for the passes that now go through it.

    Raises:
        ModelError: a name is not known, or the networks or images differ in the order of layers.
    """
    layers = [(name, layer_named(network, name)) for network in networks for name in names]
    hooks = [layer.register_forward_pre_hook(_pause(name)) for name, layer in layers]
    passes = [[greenlet(_forward(network, batch)) for batch in batches] for network in networks]
    try:
        _advance(passes, visit)
    finally:
        for hook in hooks:
            hook.remove()


def _forward(network: nn.Module, batch: Tensor) -> Callable[[], None]:
    def run() -> None:
        network(batch)  # returns None to the caller of switch(): this pass is over

    return run


def _pause(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        parent = getcurrent().parent
        assert parent is not None  # passes are started by `_advance`, never as the main greenlet
        parent.switch((name, inputs[0]))

    return hook


def _advance(passes: list[list[greenlet]], visit: Visit) -> None:
    while True:
        stops = [[one.switch() for one in row] for row in passes]
        names = {None if stop is None else stop[0] for row in stops for stop in row}
        if names <= {None}:
            return
        if len(names) != 1:
            raise ModelError(f"the order of layers depends on the image: {sorted(map(str, names))} at once")
        visit(names.pop() or "", [[stop[1] for stop in row] for row in stops])
