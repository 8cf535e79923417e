"""Strategies that damage a good file: bytes, lines of text, and values of a tree of JSON or TOML."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

Tree = Any
"""What JSON can say."""
Place = tuple[int | str, ...]

WORDS_32 = (0, 1, 4, 0x7F, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
NUMBERS = ("0", "-1", "1e999", "-1e999", "nan", "1e-320", "9" * 30, "9" * 5000, "", "0x10", "1.", "٣", "1_0")
TEXTS = (
    "",
    " ",
    "a" * 3000,
    "../../../etc/passwd",
    "/dev/zero",
    "a\x00b",
    "a\nb",
    "$(touch pwned); `touch pwned` | & > pwned",
    "-rf",
    "%s%n{0}",
    "\U0001f4a5",
    "[red]markup[/red]",
    "<script>",
    "conv 0>0 1x1 @0x0",
    f"conv {'9' * 5000}>8 1x1 @9x9",
    f"linear 8>8 @{'9' * 5000}x1",
    "zoo:nothing",
)
VALUES: tuple[Tree, ...] = (
    None,
    True,
    0,
    -1,
    1,
    3,
    2**31,
    2**63,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
    -1e308,
    1e-320,
    math.nan,
    math.inf,
    [],
    {},
    [[]],
    [None],
    *TEXTS,
)


def deep(levels: int) -> Tree:
    """Returns a list in a list in a list."""
    tree: Tree = []
    for _ in range(levels):
        tree = [tree]
    return tree


# Bytes


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes, *, most: int = 6) -> bytes:
    """Changes, cuts, repeats or inserts a few bytes."""
    for _ in range(draw(st.integers(1, most))):
        content = _edit_bytes(draw, content)
    return content


def _edit_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    at = draw(st.integers(0, max(0, len(content) - 1)))
    end = min(len(content), at + draw(st.integers(1, 16)))
    kind = draw(st.integers(0, 7))
    if kind <= 2:
        return content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :]
    if kind == 3:
        word = draw(st.sampled_from((*WORDS_32, len(content))))
        return content[:at] + word.to_bytes(4, draw(st.sampled_from(["little", "big"]))) + content[at + 4 :]
    if kind == 4:
        return content[:at]
    if kind == 5:
        return content[:at] + content[end:]
    if kind == 6:
        return content[:end] + content[at:]
    return content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at:]


# Text


@st.composite
def damaged_text(draw: st.DrawFn, text: str) -> str:
    """Changes numbers and words, and drops, repeats and swaps lines."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        kind = draw(st.integers(0, 6))
        if kind <= 2:
            lines[at] = _odd_number(draw, lines[at])
        elif kind == 3:
            lines[at] = _odd_part(draw, lines[at])
        elif kind == 4 and len(lines) > 1:
            del lines[at]
        elif kind == 5:
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        else:
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
    return draw(st.sampled_from(["\n", "\n", "\n", "\r\n", " "])).join(lines)


def _odd_number(draw: st.DrawFn, line: str) -> str:
    found = list(re.finditer(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", line))
    if not found:
        return _odd_part(draw, line)
    one = draw(st.sampled_from(found))
    return line[: one.start()] + draw(st.sampled_from(NUMBERS)) + line[one.end() :]


def _odd_part(draw: st.DrawFn, line: str) -> str:
    at = draw(st.integers(0, len(line)))
    end = draw(st.integers(at, len(line)))
    return line[:at] + draw(st.one_of(st.text(max_size=6), st.sampled_from(TEXTS))) + line[end:]


# Trees


@st.composite
def damaged_tree(draw: st.DrawFn, tree: Tree) -> Tree:
    """Replaces, drops, repeats and moves values of a tree."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(tree))
        tree = _edit_tree(draw, tree, draw(st.sampled_from(places)), places)
    return tree


def _places(tree: Tree, here: Place = ()) -> Iterator[Place]:
    yield here
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield from _places(child, (*here, key))


def _at(tree: Tree, place: Place) -> Tree:
    for key in place:
        tree = tree[key]
    return tree


def _edit_tree(draw: st.DrawFn, tree: Tree, place: Place, places: list[Place]) -> Tree:
    old, kind = _at(tree, place), draw(st.integers(0, 9))
    if kind <= 4 or not place:
        return _replaced(tree, place, copy.deepcopy(_odd_value(draw, old)))
    if kind == 5:
        return _replaced(tree, place, copy.deepcopy(_at(tree, draw(st.sampled_from(places)))))
    if kind == 6:
        return _replaced(tree, place, deep(draw(st.sampled_from([3, 60, 400]))))
    parent = _at(tree, place[:-1])
    if kind == 7:
        del parent[place[-1]]
    elif isinstance(parent, list):
        parent.insert(draw(st.integers(0, len(parent))), copy.deepcopy(old))
    else:
        parent[draw(st.sampled_from(["extra", "", *parent]))] = copy.deepcopy(old)
    return tree


def _odd_value(draw: st.DrawFn, old: Tree) -> Tree:
    if isinstance(old, bool) or not isinstance(old, int | float | str):
        return draw(st.sampled_from(VALUES))
    if isinstance(old, str):
        return draw(st.one_of(st.sampled_from(TEXTS), st.sampled_from(VALUES), st.text(max_size=8)))
    near: tuple[Callable[[], Tree], ...] = (
        lambda: old + 1,
        lambda: old - 1,
        lambda: -old,
        lambda: old * 1000,
        lambda: str(old),
        lambda: draw(st.integers(-(2**70), 2**70)),
        lambda: draw(st.floats()),
    )
    return draw(st.one_of(st.sampled_from(near).map(lambda make: make()), st.sampled_from(VALUES)))


def _replaced(tree: Tree, place: Place, value: Tree) -> Tree:
    if not place:
        return value
    _at(tree, place[:-1])[place[-1]] = value
    return tree


# Files made of them


@st.composite
def damaged_json(draw: st.DrawFn, text: str, *, seal: Callable[[Tree], Tree] = lambda tree: tree) -> bytes:
    """Damages what a JSON file says, and now and then its bytes; `seal` may make a hash fit again."""
    if draw(st.integers(0, 4)) == 0:
        return draw(damaged_bytes(text.encode()))
    tree = seal(draw(damaged_tree(json.loads(text))))
    return json.dumps(tree, ensure_ascii=draw(st.booleans())).encode("utf-8", errors="surrogatepass")


@st.composite
def damaged_toml(draw: st.DrawFn, tree: Tree) -> bytes:
    """Damages what a TOML file says, and now and then its text."""
    damaged = draw(damaged_tree(tree))
    content = damaged if isinstance(damaged, dict) else {"value": damaged}
    text = "".join(f"{_key(key)} = {toml(value)}\n" for key, value in content.items() if value is not None)
    if draw(st.integers(0, 3)) == 0:
        text = draw(damaged_text(text))
    return text.encode("utf-8", errors="surrogatepass")


def toml(value: Tree) -> str:
    """Returns a value as TOML on one line, tables inline; what TOML has no word for is left out."""
    levels = 0
    while isinstance(value, list) and len(value) == 1 and value[0] is not None:
        value, levels = value[0], levels + 1  # not by calls: deep ones may be inside of deep ones
    return f"{'[' * levels}{_toml(value)}{']' * levels}"


def _toml(value: Tree) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {toml(one)}" for key, one in value.items() if one is not None)
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(toml(one) for one in value if one is not None)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "false" if value is None else json.dumps(value)


def _key(name: str) -> str:
    return json.dumps(str(name))
