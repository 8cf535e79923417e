"""Reads the keys of blocks back: a table names blocks by their keys alone."""

from __future__ import annotations

import contextlib
import re

from pydantic import ValidationError

from edgecompress.core.types import Block, Op, Size
from edgecompress.errors import ArtefactError

_N = r"\d{1,9}"  # of numbers that are longer, Python itself refuses the longest
_FORMS = {
    "conv2d": re.compile(
        rf"conv (?P<inputs>{_N})>(?P<outputs>{_N}) (?P<kernel>{_N}x{_N})(?: s(?P<stride>{_N}x{_N}))?"
        rf"(?: p(?P<padding>{_N}x{_N}))?(?: d(?P<dilation>{_N}x{_N}))?(?: g(?P<groups>{_N}))?"
    ),
    "linear": re.compile(rf"linear (?P<inputs>{_N})>(?P<outputs>{_N})"),
    "gelu": re.compile(rf"gelu (?P<inputs>{_N})"),
    "attention": re.compile(rf"attention h(?P<groups>{_N})x(?P<dim>{_N})"),
}
_PAIRS = ("kernel", "stride", "padding", "dilation")


def parse_block(key: str) -> tuple[Block, Size]:
    """Returns the block of a key, with biases everywhere, and the size of its input map.

    Raises:
        ArtefactError: the text is no key.
    """
    found = [_parse_chain(part, key) for part in key.split(" + ")]
    return Block(branches=tuple(ops for ops, _ in found)), found[0][1]


def _parse_chain(text: str, key: str) -> tuple[tuple[Op, ...], Size]:
    place = re.search(rf" @({_N})x({_N})\b", text)
    if place is None:
        raise ArtefactError(f"latency key {key!r}: says no input size; build the table again")
    plain = text[: place.start()] + text[place.end() :]
    ops = tuple(_parse_op(part, key) for part in plain.split(" > "))
    return ops, (int(place[1]), int(place[2]))


def _parse_op(text: str, key: str) -> Op:
    for kind, form in _FORMS.items():
        match = form.fullmatch(text)
        if match is not None:
            with contextlib.suppress(ValidationError):  # a width of 0, groups that do not divide channels
                return Op.model_validate({"kind": kind, "bias": True, **_fields(kind, match)})
    raise ArtefactError(f"latency key {key!r}: {text!r} is not understood; build the table again")


def _fields(kind: str, match: re.Match[str]) -> dict[str, object]:
    given = {name: text for name, text in match.groupdict().items() if text is not None}
    fields: dict[str, object] = {
        name: tuple(map(int, text.split("x"))) if name in _PAIRS else int(text)
        for name, text in given.items()
    }
    if kind == "gelu":
        return fields | {"outputs": fields["inputs"]}
    if kind == "attention":
        width = int(given["groups"]) * int(given["dim"])
        return {"inputs": 3 * width, "outputs": width, "groups": int(given["groups"])}
    return fields
