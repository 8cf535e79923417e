"""Builds networks from the user's own Python, and says in one line what went wrong there."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from edgecompress.errors import ModelError

FILE_SOURCE = re.compile(r"(?P<path>.+\.py)(?::(?P<factory>[^:/\\]+))?")
"""`path/to/file.py:factory`, or without the factory."""
USER_CODE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    SystemExit,
    TypeError,
    ValueError,
)
"""What a mistake in a user's file or network raises; a file that runs as a script may also exit."""


def build_from_file(path: Path, factory: str, *, source: str) -> nn.Module:
    """Runs a Python file and returns what its factory makes.

    The file's own directory can be imported from, as if the file were run as a script.

    Raises:
        ModelError: there is no such file or factory, its code fails, or it makes no `nn.Module`.
    """
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file; write path/to/file.py:factory")
    with _on_import_path(path.parent):
        return _call(_run_file(path, source=source), factory, source=source)


def build_from_module(module: str, factory: str, *, source: str) -> nn.Module:
    """Imports a module and returns what its factory makes.

    Raises:
        ModelError: there is no such module or factory, its code fails, or it makes no `nn.Module`.
    """
    try:
        imported = importlib.import_module(module)
    except USER_CODE_ERRORS as error:
        raise ModelError(f"{source}: importing {module} failed: {describe(error)}") from error
    return _call(imported, factory, source=source)


def describe(error: BaseException) -> str:
    """Returns an error in one line, with the place in the user's code where it arose."""
    text = " ".join(str(error).split())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    place = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def _is_users(filename: str) -> bool:
    ours, theirs = Path(__file__).parent, Path(torch.__file__).parent
    return not filename.startswith("<") and not {ours, theirs} & set(Path(filename).parents)


@contextlib.contextmanager
def _on_import_path(directory: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path[:] = before


def _run_file(path: Path, *, source: str) -> ModuleType:
    # a name of its own, so that a user's `torch.py` or two files `model.py` stay apart
    name = f"edgecompress_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except USER_CODE_ERRORS as error:
        del sys.modules[name]
        raise ModelError(f"{source}: running the file failed: {describe(error)}") from error
    return module


def _call(module: ModuleType, factory: str, *, source: str) -> nn.Module:
    make = getattr(module, factory, None)
    if make is None:
        raise ModelError(
            f"{source}: has no {factory!r}; known are: {', '.join(_factories(module)) or 'none'}"
        )
    if isinstance(make, nn.Module) or not callable(make):
        raise ModelError(f"{source}: {factory!r} is of type {type(make).__name__}; name a function or class")
    if needed := _needed_arguments(make):
        raise ModelError(f"{source}: {factory!r} needs {', '.join(needed)}; name one without arguments")
    try:
        network = make()
    except USER_CODE_ERRORS as error:
        raise ModelError(f"{source}: calling {factory!r} failed: {describe(error)}") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"{source}: {factory!r} returned type {type(network).__name__}; return an nn.Module")
    if isinstance(network, torch.jit.ScriptModule):
        raise ModelError(f"{source}: {factory!r} returned TorchScript, whose layers cannot be replaced")
    return network


def _factories(module: ModuleType) -> list[str]:
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return [name for name, value in own.items() if getattr(value, "__module__", None) == module.__name__]


def _needed_arguments(make: object) -> list[str]:
    assert callable(make)
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # some built-in callables have no signature
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
