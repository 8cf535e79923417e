"""Makes PyTorch vision models smaller and faster on edge CPUs.

`compress`, `inspect` and `quickstart` are the commands of the same name; `load` turns a run
directory back into a network. Importing the package costs nothing: torch comes with first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgecompress.nets.artefact import load
    from edgecompress.pipeline.compress import compress
    from edgecompress.pipeline.inspect import inspect
    from edgecompress.pipeline.quickstart import quickstart

__version__ = "0.1.0"
__all__ = ["__version__", "compress", "inspect", "load", "quickstart"]

_HOMES = {
    "compress": "edgecompress.pipeline.compress",
    "inspect": "edgecompress.pipeline.inspect",
    "load": "edgecompress.nets.artefact",
    "quickstart": "edgecompress.pipeline.quickstart",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgecompress' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
