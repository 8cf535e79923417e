"""Lists the licence of everything this package needs to run, as the installed packages state it themselves.

    python tests/licences.py                   # the table of docs/licences.md
    python tests/licences.py --requirements    # the same packages and versions, for pip-audit

Exits with 1 where one is not known, or asks more of those who pass the package on than the LGPL does.
"""

# ruff: noqa: T201  what it prints is its result

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "edgecompress"
SHORT = {
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""Names of classifiers and of free text, as SPDX has them."""
TEXTS = {
    "Permission is hereby granted, free of charge": "MIT",
    "Apache License": "Apache-2.0",
    "Redistribution and use in source and binary forms": "BSD",
}
"""How licences begin, for packages that ship one and do not name it."""
UNKNOWN = "unknown"
TOO_FAR = re.compile(r"(?<!L)(?<!Lesser )(A?GPL|GNU (Affero )?General Public)|SSPL|Commons Clause|BUSL", re.I)


@dataclass(frozen=True)
class Package:
    """A package that is installed."""

    name: str
    licence: str
    asked_by: str
    """The package that needs it."""


def main() -> int:
    """Prints the table, or the requirements."""
    packages = needed_packages()
    print("\n".join(requirements(packages) if "--requirements" in sys.argv else table(packages)))
    return int(bool(objections(packages)))


def needed_packages(root: str = PACKAGE) -> list[Package]:
    """Returns all that `root` needs to run, directly or not, by name; extras are left out."""
    asked, found = [(name, root) for name in _needs(root, ())], {}
    while asked:
        (name, extras), by = asked.pop(0)
        if (name, extras) not in found:
            found[name, extras] = Package(name, licence_of(name), by)
            asked += [(one, name) for one in _needs(name, extras)]
    return sorted({one.name: one for one in found.values()}.values(), key=lambda one: one.name)


def _needs(name: str, extras: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    needs = [Requirement(text) for text in metadata.requires(name) or ()]
    asked = [one for one in needs if _applies(one, extras) and _is_installed(one.name)]
    return [(canonicalize_name(one.name), tuple(sorted(one.extras))) for one in asked]


def _applies(one: Requirement, extras: tuple[str, ...]) -> bool:
    return one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def licence_of(name: str) -> str:
    """Returns the licence a package states: as an expression, by classifiers, in words, or as a text."""
    told = metadata.distribution(name)
    if expression := told.metadata.get("License-Expression"):
        return str(expression)
    classifiers = [one for one in told.metadata.get_all("Classifier") or () if one.startswith("License ::")]
    named = [one.rpartition(" :: ")[2] for one in classifiers if not one.endswith("OSI Approved")]
    if named:
        return " OR ".join(SHORT.get(one, one) for one in sorted(named))
    words = (told.metadata.get("License") or "").strip()
    if words and len(words) < 60:
        return SHORT.get(words, words)
    return _named_by_text(words + "".join(_licence_texts(told)))


def _licence_texts(told: metadata.Distribution) -> list[str]:
    names = [one for one in told.files or () if re.search(r"licen[cs]e|copying", one.name, re.I)]
    return [one.locate().read_text(errors="replace")[:2000] for one in names if one.locate().is_file()]


def _named_by_text(text: str) -> str:
    return next((name for part, name in TEXTS.items() if part in text), UNKNOWN)


def objections(packages: list[Package]) -> list[str]:
    """Returns those whose licence is not known or asks too much."""
    return [
        f"{one.name}: {one.licence}"
        for one in packages
        if one.licence == UNKNOWN or (TOO_FAR.search(one.licence) and " OR " not in one.licence)
    ]


def requirements(packages: list[Package]) -> list[str]:
    """Returns names and versions; builds of one version (`+cpu`) have the faults of that version."""
    return [f"{one.name}=={metadata.version(one.name).partition('+')[0]}" for one in packages]


def table(packages: list[Package]) -> list[str]:
    """Returns the lines of the table."""
    rows = [f"| {one.name} | {one.licence} | {one.asked_by} |" for one in packages]
    return ["| package | licence | needed by |", "|---|---|---|", *rows]


if __name__ == "__main__":
    sys.exit(main())
