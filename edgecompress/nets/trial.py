"""Runs a network once on a zero image: does it work, how many classes has it, which layers run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgecompress.core.types import Preprocess
from edgecompress.errors import ModelError
from edgecompress.nets.user_code import USER_CODE_ERRORS, describe

USUAL_SIZE = (224, 224)
"""Of the user's own networks, where nothing else is said."""
_READ_THEIR_LAYERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that use the weights of the linear layers in them without calling those layers."""


@dataclass(frozen=True)
class Trial:
    """What one image showed."""

    classes: int
    called: tuple[str, ...]
    """Convolutions and linear layers by name, in the order they first ran."""


def run_once(network: nn.Module, preprocess: Preprocess, *, source: str) -> Trial:
    """Runs `network`, which must be in eval mode, on one zero image.

    Raises:
        ModelError: it fails, or returns something else than one row of logits.
    """
    called: list[str] = []
    layers = {name: child for name, child in network.named_modules() if _is_layer(child)}
    handles = [child.register_forward_pre_hook(_noting(name, called)) for name, child in layers.items()]
    channels, (height, width) = len(preprocess.mean), preprocess.size
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.empty(0))
    image = torch.zeros(1, channels, height, width, dtype=like.dtype, device=like.device)
    try:
        with torch.no_grad():
            output = network(image)
    except USER_CODE_ERRORS as error:
        shape = f"{height}x{width} image of {channels} channels"
        usual = " (224x224 by default)" if preprocess.size == USUAL_SIZE else ""
        hint = f"pass what it takes as --input-size{usual} and --channels"
        raise ModelError(f"{source}: does not run on a {shape}: {describe(error)}; {hint}") from error
    finally:
        for handle in handles:
            handle.remove()
    return Trial(_classes(output, source=source), tuple(dict.fromkeys(called)))


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d | nn.Linear)


def _noting(name: str, called: list[str]) -> Callable[[nn.Module, object], None]:
    return lambda module, args: called.append(name)


def _classes(output: object, *, source: str) -> int:
    if isinstance(output, Tensor) and output.ndim == 2 and output.shape[0] == 1:
        return output.shape[1]
    found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
    raise ModelError(f"{source}: returned {found} for one image; it must return logits of shape (1, classes)")


def replaceable_layers(network: nn.Module, trial: Trial) -> tuple[str, ...]:
    """Returns the layers to compress in a network nothing else is known of.

    These are the convolutions and linear layers that ran, except the first convolution and the
    classifier, and except layers whose place nothing else could take: subclasses with a forward of
    their own, and layers whose parent reads their weights itself.
    """
    first = next((name for name in trial.called if isinstance(network.get_submodule(name), nn.Conv2d)), None)
    last = trial.called[-1] if trial.called else None
    if last is not None and _outputs(network.get_submodule(last)) != trial.classes:
        last = None  # the network does not end in a classifier layer
    return tuple(name for name in trial.called if name not in (first, last) and _is_plain(network, name))


def _outputs(layer: nn.Module) -> int:
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    return layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features


def _is_plain(network: nn.Module, name: str) -> bool:
    layer, parent = network.get_submodule(name), network.get_submodule(name.rpartition(".")[0])
    own_forward = type(layer).forward not in (nn.Conv2d.forward, nn.Linear.forward)
    return not own_forward and not isinstance(parent, _READ_THEIR_LAYERS)
