"""Values as TOML, for settings that people read and change."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue


def toml_value(value: JsonValue) -> str:
    """Returns a value as it stands after the `=`; lists are the only containers options have."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_table(name: str, options: Mapping[str, JsonValue]) -> str:
    """Returns options as the table of a command; those that were not given are left out."""
    given = (f"{key} = {toml_value(value)}" for key, value in options.items() if value not in (None, []))
    return "\n".join([f"[{name}]", *given]) + "\n"
