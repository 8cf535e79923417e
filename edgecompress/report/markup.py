"""HTML made of nested calls: text is escaped, whatever it holds, and only markup made here is not."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

EMPTY = frozenset({"meta", "link", "br", "rect", "line", "polyline", "polygon", "circle", "path", "col"})
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""Control characters, and those that turn the direction of what follows: a name may hold them."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Returns text as HTML shows it; what cannot be seen becomes a replacement character."""
    return value if isinstance(value, Markup) else Markup(html.escape(_UNSEEN.sub("\ufffd", value)))


def el(name: str, /, *children: str, **attributes: object) -> Markup:
    """Returns an element. `class_` is `class`, `aria_label` is `aria-label`; None leaves an attribute out."""
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if name in EMPTY:
        return Markup(opened.replace(">", "/>") if opened.endswith("/") else f"{opened[:-1]}/>")
    return Markup(f"{opened}{''.join(map(text, children))}</{name}>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" + ("=''" if value is True else f'="{text(str(value))}"')


def join(parts: Iterable[str]) -> Markup:
    """Returns parts one after the other."""
    return Markup("".join(map(text, parts)))
