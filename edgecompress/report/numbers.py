"""Figures as people read them."""

from __future__ import annotations

from collections.abc import Iterable


def count(value: float) -> str:
    """Returns `1234567` as `1.235 M`, with four figures at most."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}"


def megabytes(size_bytes: float) -> str:
    """Returns bytes in MB of 1,000,000, with two decimals."""
    return f"{size_bytes / 1e6:.2f} MB"


def change(before: float, after: float) -> str:
    """Returns the change in percent, with its sign; nothing can be said about a change from zero."""
    # z: what rounds to nothing has no minus
    return "" if before == 0 else f"{(after - before) / before:+z.1%}".replace("%", " %")


def share(part: float, whole: float) -> str:
    """Returns a part of a whole in percent."""
    return "" if whole == 0 else f"{part / whole:.1%}".replace("%", " %")


def shape(sizes: Iterable[int]) -> str:
    """Returns `(3, 224, 224)` as `3x224x224`."""
    return "x".join(map(str, sizes))
