"""Device files: one TOML file per phone, board or machine, shipped with the package or a user's own."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgecompress.core.device import Device
from edgecompress.core.store import read_text
from edgecompress.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIX = ".toml"
OWN_FOLDER = Path("devices")
"""Where a user keeps device files, below the current folder; they win over the shipped ones."""

ANY_PHONE = Device(
    name="adb",
    title="an Android phone attached over adb",
    drivers=("adb",),
    notes=("Its model and its cores are read when measuring.",),
)
"""For phones without a file."""


def known_devices() -> dict[str, Device]:
    """Returns every device that can be named, by name: shipped, the user's own, and any phone.

    Raises:
        ConfigError: a file is wrong.
    """
    found = {ANY_PHONE.name: ANY_PHONE}
    found |= {name: _read_device(path) for name, path in _files().items()}
    return dict(sorted(found.items()))


def load_device(name_or_path: str) -> Device:
    """Returns the device of a `.toml` file, or of a name: in `./devices`, else shipped.

    Raises:
        ConfigError: there is no such device, or its file is wrong; all faults in one line.
    """
    if name_or_path.endswith(SUFFIX):
        return _read_device(Path(name_or_path).expanduser())
    files = _files()
    if name_or_path in files:
        return _read_device(files[name_or_path])
    if name_or_path == ANY_PHONE.name:
        return ANY_PHONE
    known = ", ".join(sorted({ANY_PHONE.name, *files}))
    raise ConfigError(
        f"device {name_or_path!r} is not known; known are: {known}; or give the path of a {SUFFIX} file"
    )


def shipped_directory(package: Path = PACKAGE) -> Path:
    """Returns the folder of the shipped files: in an installed package, or at the top of a checkout.

    Raises:
        ConfigError: there is neither.
    """
    for folder in (package / "device_files", package.parent / "devices"):
        if folder.is_dir():
            return folder
    raise ConfigError(f"{package}: the device files are missing; install edgecompress again")


def _files() -> dict[str, Path]:
    own = {path.stem: path for path in OWN_FOLDER.glob(f"*{SUFFIX}")}
    return {path.stem: path for path in shipped_directory().glob(f"*{SUFFIX}")} | own


def _read_device(path: Path) -> Device:
    content = _read_toml(path)
    if "name" in content:
        raise ConfigError(f"{path}: has the key 'name'; the device's name is the file's name, leave it out")
    try:
        # as JSON, where strict still takes a list for a tuple; but "1" is no 1
        text = json.dumps(content | {"name": path.stem}, default=str)
        device = Device.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(_faults(error))}") from None
    problems = list(_problems(device))
    if problems:
        raise ConfigError(f"{path}: {'; '.join(problems)}")
    return device


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file; device files are TOML") from None
    except (ValueError, RecursionError) as error:  # the parser has no error of its own for endless numbers
        raise ConfigError(f"{path}: not valid toml: {error}") from None


def _faults(error: ValidationError) -> Iterator[str]:
    """Says what is wrong with each key; pydantic's own text for an unknown one does not list the known."""
    details = error.errors()
    unknown = [_key(one["loc"]) for one in details if one["type"] == "extra_forbidden"]
    if unknown:
        known = ", ".join(name for name in Device.model_fields if name != "name")
        yield f"unknown: {', '.join(unknown)} (known are: {known})"
    for one in details:
        if one["type"] == "missing":
            yield f"{_key(one['loc'])} is missing"
        elif one["type"] != "extra_forbidden":
            yield f"{_key(one['loc'])} = {json.dumps(one['input'], default=str)}: {one['msg'].lower()}"


def _key(place: tuple[int | str, ...]) -> str:
    """Returns the place of a value as `clusters[0].cores`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _problems(device: Device) -> Iterator[str]:
    names = [one.name for one in device.clusters]
    cores = [core for one in device.clusters for core in one.cores]
    if device.cluster is not None and device.cluster not in names:
        yield f"cluster = {json.dumps(device.cluster)}: not among clusters: {', '.join(names) or 'none'}"
    if len(set(names)) < len(names):
        yield f"clusters: two have one name: {', '.join(names)}"
    if len(set(cores)) < len(cores) or min(cores, default=0) < 0:
        yield f"clusters: a core is listed twice or is negative: {', '.join(map(str, cores))}"
