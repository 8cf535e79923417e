"""Which layers a command works on."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from edgecompress.errors import ConfigError
from edgecompress.nets.sources import LoadedModel


def chosen_layers(loaded: LoadedModel, wanted: str) -> tuple[str, ...]:
    """Returns layer names for `paper`, `all` or comma-separated patterns such as `layer1.*,head`.

    Raises:
        ConfigError: there is no pattern, or one fits no convolution or linear layer.
    """
    if wanted == "paper":
        return loaded.targets
    known = [
        name for name, module in loaded.module.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    if wanted == "all":
        return tuple(known)
    patterns = [pattern.strip() for pattern in wanted.split(",") if pattern.strip()]
    for pattern in patterns or [wanted]:
        if not any(fnmatchcase(name, pattern) for name in known):
            shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            raise ConfigError(f"layers {pattern!r}: fits no convolution or linear layer; there are: {shown}")
    return tuple(name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns))
