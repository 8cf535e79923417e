"""Finds plug-ins: a package's modules are imported and their top-level constants of a kind collected.

Importing a module registers nothing, so there is no order to get wrong. Adding a method, a rank
selection, a data reader or an exporter is adding one file with one constant.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
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


def pick(known: Mapping[str, P], name: str, *, what: str) -> P:
    """Returns `known[name]`.

    Raises:
        ConfigError: there is no such name; the message lists the known ones.
    """
    if name not in known:
        raise ConfigError(f"{what} {name!r} is not known; known are: {', '.join(sorted(known))}")
    return known[name]
