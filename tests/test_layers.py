"""Imports point downwards, and torch stays out of the packages that must do without it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import edgecompress

PACKAGE = Path(edgecompress.__file__).parent
ROWS = {
    "errors": 0,
    "core": 1,
    "nets": 2,
    "data": 2,
    "devices": 2,
    "methods": 3,
    "factors": 3,
    "export": 3,
    "latency": 3,
    "train": 3,
    "search": 4,
    "pipeline": 5,
    "report": 5,
    "cli": 6,
    "__init__": 7,  # hands out names of other packages, when asked for
    "__main__": 7,
}
TORCH = {"torch", "torchvision", "timm"}
WITHOUT_TORCH = {"errors", "core", "devices", "latency", "report", "cli", "__init__", "__main__"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported_names(tree):
    """Yields the full dotted name of everything a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(dotted):
    """Returns the package of ours a name belongs to; None for other people's packages."""
    parts = dotted.split(".")
    if parts[0] != "edgecompress" or dotted == "edgecompress.__version__":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROWS else "__init__"


def offences(source, own):
    """Returns the imports a module of the package `own` may not have."""
    found = []
    for name in imported_names(ast.parse(source)):
        other = room(name)
        if other is not None and other != own and ROWS[other] >= ROWS[own]:
            found.append(name)
        if own in WITHOUT_TORCH and name.split(".")[0] in TORCH:
            found.append(name)
    return found


def own_room(path):
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    assert own_room(path) in ROWS, "a new package needs a row"
    assert offences(path.read_text(encoding="utf-8"), own_room(path)) == []


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("core", "from edgecompress.nets import zoo"),
        ("core", "import edgecompress.pipeline.compress"),
        ("core", "from edgecompress import cli"),
        ("core", "from edgecompress import compress"),
        ("core", "import edgecompress"),
        ("nets", "from edgecompress.data.idx import read"),
        ("methods", "def f():\n    from edgecompress.search import ranks"),
        ("methods", "if TYPE_CHECKING:\n    from edgecompress.factors import plain"),
        ("search", "from edgecompress.pipeline import compress"),
        ("report", "from edgecompress.pipeline.compress import compress"),
        ("report", "import torch.nn as nn"),
        ("cli", "def f():\n    from torch import nn"),
        ("devices", "import torchvision"),
    ],
)
def test_a_forbidden_import_is_caught(own, source):
    assert len(offences(source, own)) == 1


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("core", "from edgecompress import __version__\nfrom edgecompress.errors import ConfigError"),
        ("core", "from edgecompress.core.types import Plan"),
        ("nets", "import torch"),
        ("search", "from edgecompress.methods import lowrank"),
        ("cli", "def f():\n    from edgecompress.pipeline.compress import compress"),
    ],
)
def test_an_allowed_import_is_not(own, source):
    assert offences(source, own) == []


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_packages_without_torch_can_be_imported_without_it():
    names = [module_name(path) for path in MODULES if own_room(path) in WITHOUT_TORCH - {"__main__"}]
    assert "edgecompress.cli.main" in names
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(sorted({TORCH!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_the_package_hands_out_is_there():
    for name in edgecompress.__all__:
        assert getattr(edgecompress, name) is not None


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        edgecompress.no_such_name  # noqa: B018
