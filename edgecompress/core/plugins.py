"""Finds plug-ins: a package's modules are imported and their top-level constants of a kind collected.

Importing a module registers nothing, so there is no order to get wrong. Adding a method, a rank
selection, a data reader or an exporter is adding one file with one constant.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from edgecompress.errors import ConfigError


class Plugin(Protocol):
    """What every plug-in record has."""

    @property
    def name(self) -> str:
        """The name users type."""

    @property
    def summary(self) -> str:
        """One line for `edgecompress list`."""


P = TypeVar("P", bound=Plugin)


def discover(package: ModuleType, kind: type[P]) -> dict[str, P]:
    """Returns the instances of `kind` at the top level of the modules of `package`, by name.

    Raises:
        ConfigError: two plug-ins have one name.
    """
    found: dict[str, P] = {}
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, kind) and found.setdefault(value.name, value) is not value:
                raise ConfigError(f"{info.name}: another plug-in is also called {value.name!r}")
    return found


def described(package: ModuleType, kind: str) -> dict[str, tuple[str, ...]]:
    """Returns what the plug-ins of a kind say of themselves, by name: their summary, and further texts.

    Read from the source: most modules bring torch along, and who wants a list should not wait for it.
    """
    calls = itertools.chain.from_iterable(_constants(Path(folder)) for folder in package.__path__)
    made = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == kind)
    return {texts[0]: texts[1:] for texts in map(_first_texts, made)}


def _constants(folder: Path) -> Iterator[ast.Call]:
    for file in sorted(folder.glob("*.py")):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                yield node.value


def _first_texts(call: ast.Call) -> tuple[str, ...]:
    values = (one.value if isinstance(one, ast.Constant) else None for one in call.args)
    return tuple(itertools.takewhile(lambda value: isinstance(value, str), values))  # type: ignore[arg-type]


def pick(known: Mapping[str, P], name: str, *, what: str) -> P:
    """Returns `known[name]`.

    Raises:
        ConfigError: there is no such name; the message lists the known ones.
    """
    if name not in known:
        raise ConfigError(f"{what} {name!r} is not known; known are: {', '.join(sorted(known))}")
    return known[name]
