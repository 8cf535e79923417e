"""Files of settings: options read from TOML, JSON or the `run.json` of an earlier run, and checked."""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from edgecompress.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Settings = dict[str, Any]
"""Values by option name, spelt as in Python: `rank_selection`."""


def load_settings(
    path: Path, command: str, *, known: Mapping[str, Any], commands: Collection[str]
) -> Settings:
    """Reads what a file of settings says about one command.

    Keys at the top of the file are for the command being run and keys of its own table
    (`[compress]`) win over them; the tables of other `commands` are left alone, while `device = ...` is
    an option though a command has that name. A list may stand where an option takes text:
    `mean = [0.5, 0.5]` is `"0.5,0.5"`.

    Args:
        path: A `.toml` or `.json` file, or a run directory or its `run.json`.
        command: The command being run.
        known: The type of every option the command has.
        commands: All commands there are.

    Raises:
        ConfigError: the file cannot be read, or a key or type is wrong; all faults in one line.
    """
    content = _options_of_run(_read(path), path, command)
    others = {key for key, value in content.items() if key in commands and isinstance(value, dict)}
    table = content.get(command, {})
    top = {key: value for key, value in content.items() if key not in others and key != command}
    if command in known and not isinstance(table, dict):  # the option of that name, as of `search`
        top, table = {**top, command: table}, {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {command!r} must be a table, [{command}]")
    settings = _python_names(top, path) | _python_names(table, path)
    faults = list(_faults(settings, known))
    if faults:
        raise ConfigError(f"{path}: {'; '.join(faults)}")
    return {key: _as_flag(value, known[key]) for key, value in settings.items() if value is not None}


def _read(path: Path) -> Settings:
    from edgecompress.core.store import read_text  # imports pydantic

    file = path / "run.json" if path.is_dir() else path
    try:
        text = read_text(file)
        is_json = file.suffix == ".json"
        content = json.loads(text, object_pairs_hook=_each_once) if is_json else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not a text file; settings are TOML or JSON") from None
    except (ValueError, RecursionError) as error:  # neither parser says so of endless numbers and depths
        raise ConfigError(f"{file}: not valid {file.suffix.lstrip('.') or 'toml'}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: holds a {type(content).__name__}; settings are keys with values")
    return content


def _each_once(pairs: list[tuple[str, Any]]) -> Settings:
    """Returns an object of JSON; which of two values counts would be a matter of the reader."""
    twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"the key {twice[0]!r} is there twice")
    return dict(pairs)


def _options_of_run(content: Settings, path: Path, command: str) -> Settings:
    options = content.get("options")
    if "format_version" not in content or not isinstance(options, dict):
        return content
    if content.get("command") != command:
        made_by = content.get("command")
        raise ConfigError(f"{path}: is a run of {made_by!r}; its options do not fit {command!r}")
    return options


def _python_names(settings: Settings, path: Path) -> Settings:
    renamed = {key.replace("-", "_"): value for key, value in settings.items()}
    if len(renamed) < len(settings):
        twice = sorted(key for key in settings if "-" in key and key.replace("-", "_") in settings)
        raise ConfigError(f"{path}: given twice, with - and with _: {', '.join(twice)}")
    return renamed


def _faults(settings: Settings, known: Mapping[str, Any]) -> Iterator[str]:
    from pydantic import TypeAdapter  # slow to import, and most calls have no settings file

    unknown = sorted(set(settings) - set(known))
    if unknown:
        yield f"unknown: {', '.join(unknown)} (known are: {', '.join(sorted(known))})"
    for key in sorted(set(settings) & set(known)):
        problem = _type_problem(_as_flag(settings[key], known[key]), TypeAdapter(known[key]))
        if problem:
            yield f"{key} = {_as_json(settings[key])}: {problem}"


def _type_problem(value: object, wanted: TypeAdapter[Any]) -> str | None:
    from pydantic import ValidationError

    if value is None:  # how run.json writes an option that was not given
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    try:
        # as JSON, where strict still lets text be a path; but 1 is no "1" and "1" is no 1
        wanted.validate_json(_as_json(value), strict=True)
    except ValidationError as error:
        return error.errors()[0]["msg"].lower()
    return None


def _as_flag(value: object, wanted: Any) -> object:  # noqa: ANN401  a type, or a union of types
    """Returns the value as it would be typed: a list becomes comma-separated text, unless the option
    may be given several times."""
    several = wanted is list or any(get_origin(kind) is list for kind in (wanted, *get_args(wanted)))
    if isinstance(value, list) and not several and all(isinstance(item, str | int | float) for item in value):
        return ",".join(str(item) for item in value)
    return value


def _as_json(value: object) -> str:
    return json.dumps(value, default=str)  # TOML also has dates, which are text to us
