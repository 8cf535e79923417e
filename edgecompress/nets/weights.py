"""Reads checkpoints without running code from them, and puts them into a model that fits exactly."""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from edgecompress.core.unpacking import check_archive
from edgecompress.errors import WeightsError

PICKLE_SUFFIXES = (".pth", ".pt", ".th", ".bin")
SAFETENSORS_SUFFIX = ".safetensors"

_WRAPPERS = ("state_dict", "model_state_dict", "params_ema", "params", "model", "net")
"""Keys under which trainers store the weights; averaged ones come before the plain ones."""

_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What data-parallel training, `torch.compile` and training frameworks put before every name."""

_COUNTER = "num_batches_tracked"
"""Old checkpoints lack this batch norm counter; nothing reads it after training."""

_SHOWN = 3
_DAMAGED = "cut off, damaged or not a checkpoint"
_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What torch's reader ends in where a byte is not what it should be."""
_SAVE_HINT = "save model.state_dict() with torch.save, or convert it to safetensors"


def read_state_dict(path: Path | str) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by name, unwrapped and without prefixes all names share.

    Raises:
        WeightsError: the file is missing, damaged, of another kind, or needs code to be run.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise WeightsError(f"{path}: there is no such file; give the path of a checkpoint")
        return strip_prefixes(_read(path))
    except OSError as error:
        raise WeightsError(f"{path}: could not be read: {error.strerror or error}") from None


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == SAFETENSORS_SUFFIX:
        return _read_safetensors(path)
    if path.suffix in PICKLE_SUFFIXES:
        return _unwrap(path, _read_pickle(path))
    known = ", ".join((SAFETENSORS_SUFFIX, *PICKLE_SUFFIXES))
    raise WeightsError(f"{path}: suffix {path.suffix!r} is not known; known are: {known}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error}); copy it again") from None


def _check_unpacked(path: Path) -> None:
    """Makes sure that an archive is no trap: torch unpacks whatever it is given."""
    if not zipfile.is_zipfile(path):
        return
    try:
        check_archive(path)
    except (*_DAMAGE, zipfile.BadZipFile) as error:
        raise WeightsError(f"{path}: cannot be a checkpoint: {error}; {_SAVE_HINT}") from None


def _read_pickle(path: Path) -> object:
    _check_unpacked(path)
    try:
        with warnings.catch_warnings():  # archives of other kinds warn before they are refused
            warnings.simplefilter("ignore")
            content: object = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(f"{path}: {_why_refused(str(error))}") from None
    except _DAMAGE as error:
        kind = "a TorchScript archive" if "TorchScript" in str(error) else _DAMAGED
        raise WeightsError(f"{path}: {kind}; {_SAVE_HINT}") from None
    return content


def _why_refused(text: str) -> str:
    if match := re.search(r"GLOBAL (\S+) was not an allowed global", text):
        return f"holds {match[1]} beside tensors, and loading that could run code; {_SAVE_HINT}"
    return f"{_DAMAGED}; {_SAVE_HINT}"


def _unwrap(path: Path, content: object) -> dict[str, Tensor]:
    inner = content
    while isinstance(inner, Mapping):
        if inner and all(isinstance(value, Tensor) for value in inner.values()):
            return {str(name): tensor for name, tensor in inner.items()}
        wrapper = next((key for key in _WRAPPERS if isinstance(inner.get(key), Mapping)), None)
        if wrapper is None:
            break
        inner = inner[wrapper]
    found = f"keys {_some(map(str, inner))}" if isinstance(inner, Mapping) else f"type {type(inner).__name__}"
    raise WeightsError(f"{path}: holds no state_dict but {found}; {_SAVE_HINT}")


def strip_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors without `module.`, `_orig_mod.` or `model.` where every name starts with it."""
    stripped = dict(state)
    while stripped and (prefix := next((p for p in _PREFIXES if _all_start(stripped, p)), None)):
        stripped = {name.removeprefix(prefix): tensor for name, tensor in stripped.items()}
    return stripped


def _all_start(names: Iterable[str], prefix: str) -> bool:
    return all(name.startswith(prefix) for name in names)


def load_weights_(module: nn.Module, path: Path | str) -> None:
    """Copies a checkpoint into `module`; every name and shape must fit, or nothing is changed.

    Raises:
        WeightsError: the checkpoint cannot be read or does not fit; the message says where.
    """
    state = read_state_dict(path)
    own = module.state_dict()
    full_names = dict(zip(strip_prefixes(own), own, strict=True))  # a module may itself be called `model`
    if faults := _faults(state, {short: own[full] for short, full in full_names.items()}):
        raise WeightsError(
            f"{path}: does not fit the model: {faults}; was it made for another network or number of classes?"
        )
    fitted = {full: state[short] for short, full in full_names.items() if short in state}
    module.load_state_dict(fitted, strict=False)


def _faults(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    missing = [name for name in own if name not in state and not name.endswith(_COUNTER)]
    unexpected = [name for name in state if name not in own]
    reshaped = [
        f"{name} is {tuple(state[name].shape)} in the file and {tuple(own[name].shape)} in the model"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    groups = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
    return ", ".join(f"{len(names)} {what} ({_some(names)})" for what, names in groups.items() if names)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = ", ..." if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
