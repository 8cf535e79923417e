"""The colours of pages and figures, in one place: a name each, for light and for dark."""

from __future__ import annotations

import re

LIGHT = {
    "paper": "#fbfbf9",
    "card": "#ffffff",
    "ink": "#1c1e21",
    "muted": "#5c636b",
    "faint": "#d9dcdf",
    "wash": "#f0f1f0",
    "accent": "#1f5fbf",
    "good": "#1a7f45",
    "bad": "#b3261e",
    "dense": "#a3a9b0",
    "s2": "#2f6fd0",
    "s2t": "#0d8f9c",
    "s4": "#7a4fc9",
    "s4g": "#b8459b",
    "s5": "#d2691e",
    "s5g": "#b08800",
    "tucker": "#5b7f1f",
    "branches": "#c0392b",
    "narrower": "#15803d",
    "other": "#6b5b4b",
}
DARK = {
    "paper": "#131517",
    "card": "#1b1e21",
    "ink": "#e8eaec",
    "muted": "#9aa3ab",
    "faint": "#34393e",
    "wash": "#23272b",
    "accent": "#7fb0ff",
    "good": "#5fce8d",
    "bad": "#ff8a80",
    "dense": "#6b737b",
    "s2": "#6ea3f7",
    "s2t": "#3fc0cc",
    "s4": "#ab8af0",
    "s4g": "#e583cc",
    "s5": "#f19a56",
    "s5g": "#dcb94a",
    "tucker": "#9dc65a",
    "branches": "#f0796c",
    "narrower": "#56c786",
    "other": "#b7a693",
}
FAMILIES = {
    "dense": "dense, as it was",
    "s2": "S2: 1 x k, then k x 1",
    "s2t": "S2T: k x 1, then 1 x k",
    "s4": "S4: k x k, then 1 x 1",
    "s4g": "S4 in groups",
    "s5": "S5: 1 x 1, then k x k",
    "s5g": "S5 in groups",
    "tucker": "Tucker-2: 1 x 1, k x k, 1 x 1",
    "branches": "two branches, added",
    "narrower": "narrower: channels or units taken away",
    "other": "another rewrite",
}
"""What each colour of a layer stands for."""


def hue_of(family: str) -> str:
    """Returns the colour of a family by name; one of a fixed set, whatever the name holds."""
    if "+" in family:
        return "branches"
    known = {"dense": "dense", "S2": "s2", "S2T": "s2t", "tucker2": "tucker", "narrower": "narrower"}
    if family in known:
        return known[family]
    match = re.fullmatch(r"S([45])\((\d+)\)", family)
    if match is None:
        return "other"
    return f"s{match[1]}" if match[2] == "1" else f"s{match[1]}g"


def variables() -> str:
    """Returns the colours as variables of a style sheet, dark ones where the reader prefers them."""

    def listed(colours: dict[str, str]) -> str:
        return "".join(f"--{name}:{colour};" for name, colour in colours.items())

    return (
        f":root{{color-scheme:light dark;{listed(LIGHT)}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{listed(DARK)}}}}}\n"  # paper is white
    )


def classes() -> str:
    """Returns a class per colour that fills, and one that draws lines."""
    return "".join(
        f".fill-{name}{{fill:var(--{name})}}.line-{name}{{stroke:var(--{name})}}"
        f".swatch-{name}{{background:var(--{name})}}\n"
        for name in LIGHT
    )
