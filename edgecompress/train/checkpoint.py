"""Where a training or a search stands, on disk, without pickle: tensors in safetensors, the rest as JSON.

A hash covers all of it: what a failing disk has changed is told as such, and not trained on with.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edgecompress.core.store import replacing
from edgecompress.errors import ArtefactError

_TENSOR = "__tensor__"
_PAIRS = "__pairs__"
_TOLD = "edgecompress"


def save_state(path: Path, state: dict[str, Any], identity: str) -> None:
    """Writes nested dicts and lists of tensors, numbers and texts, whole or not at all.

    `identity` says of which training it is.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_packed(state, tensors))
    told = {"identity": identity, "state": text, "sha256": _digest(text, tensors)}
    with replacing(path) as temporary:
        # one text: the order of several is not always the same, and equal states are to be equal files
        save_file(tensors, temporary, {_TOLD: json.dumps(told)})


def load_state(path: Path, identity: str, *, of: str = "training") -> dict[str, Any]:
    """Reads what `save_state` wrote.

    Raises:
        ArtefactError: it is damaged, or of another training.
    """
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads(file.metadata()[_TOLD])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if not isinstance(told["state"], str) or _digest(told["state"], tensors) != told["sha256"]:
            raise ValueError("it has changed since it was written")
        if told["identity"] == identity:
            state: dict[str, Any] = _unpacked(json.loads(told["state"]), tensors)
            return state
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise ArtefactError(f"{path}: not a checkpoint of a {of}: {error}; remove it") from None
    raise ArtefactError(f"{path}: of another {of}; remove it or give another directory")


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _packed(value: object, tensors: dict[str, Tensor]) -> object:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().clone().contiguous()
        return {_TENSOR: name}
    if isinstance(value, dict):  # as pairs: JSON would make texts of an optimiser's numbers
        return {_PAIRS: [[key, _packed(one, tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return [_packed(one, tensors) for one in value]
    assert value is None or isinstance(value, bool | int | float | str), f"{type(value)} cannot be kept"
    return value


def _unpacked(value: object, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401 - whatever was packed
    if isinstance(value, list):
        return [_unpacked(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    return {key: _unpacked(one, tensors) for key, one in value[_PAIRS]}


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state dict whose tensors do not change with the network."""
    return {name: torch.clone(value.detach()) for name, value in state.items()}
