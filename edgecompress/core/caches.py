"""Where things are kept that can be made again, for all runs of this user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Returns `$XDG_CACHE_HOME/edgecompress`, by default in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "edgecompress"
