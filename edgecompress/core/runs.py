"""Runs: directories that hold what a command made, with `run.json` saying how to make it again."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import AwareDatetime, JsonValue

from edgecompress import __version__
from edgecompress.core.store import new_directory, read_record, write_record
from edgecompress.core.types import Record
from edgecompress.errors import ArtefactError, ConfigError

RUN_FILE = "run.json"
WORK_SUFFIX = ".work"

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "safetensors",
    "onnx",
    "onnxscript",
    "onnxsim",
    "onnxruntime",
    "onnx2tf",
    "tensorflow",
    "litert-torch",
    "ai-edge-litert",
    "ai-edge-quantizer",
)
"""Their versions can change a result."""

WHERE_OPTIONS = frozenset({"name", "runs_dir", "overwrite"})
"""They say where a run goes, not what it does, so `run.json` leaves them out and can serve as --config."""


class Run(Record):
    """How a run was made. `run.json`."""

    format_version: Literal[1] = 1
    name: str
    command: str
    options: dict[str, JsonValue]
    """Resolved: defaults, settings file and flags together. Without `WHERE_OPTIONS`."""
    seed: int
    created: AwareDatetime
    """When the run was complete, in UTC."""
    versions: dict[str, str]
    inputs: dict[str, str]
    """SHA-256 of every file or data source read, by its name."""
    parent: str | None = None
    """Name of the run this one started from."""
    outputs: tuple[str, ...]
    """Files of the directory besides `run.json`."""


@dataclass(frozen=True)
class NewRun:
    """A run being written."""

    directory: Path
    """Write here. It is a temporary directory until the run is complete."""
    path: Path
    """Where the run will stand."""


@contextlib.contextmanager
def create_run(
    runs_dir: Path,
    *,
    command: str,
    name: str | None = None,
    options: Mapping[str, object],
    seed: int,
    inputs: Mapping[str, str],
    parent: str | None = None,
    overwrite: bool = False,
) -> Iterator[NewRun]:
    """Yields a directory to write into; on success `run.json` is added and it becomes `runs_dir/NAME`.

    Without a name it is called after the command and `options["model"]`, with a number no other
    run has or is about to take. When the body fails nothing remains. Enter it before the long work,
    so that a name already taken costs no time.

    Raises:
        ConfigError: `name` cannot be a directory name.
        ArtefactError: the name is taken and `overwrite` is false, or the disk is full.
    """
    with claim_name(runs_dir, name, command, options) as chosen:
        path = runs_dir / chosen
        with new_directory(path, replace=overwrite) as directory:
            yield NewRun(directory, path)
            run = Run(
                name=chosen,
                command=command,
                options=plain_options(options),
                seed=seed,
                created=datetime.now(UTC),
                versions=installed_versions(),
                inputs=dict(inputs),
                parent=parent,
                outputs=_files(directory),
            )
            write_record(directory / RUN_FILE, run)


def read_run(path: Path) -> Run:
    """Reads the `run.json` of a run directory.

    Raises:
        ArtefactError: it is missing or damaged.
    """
    return read_record(path / RUN_FILE, Run)


def latest_run(runs_dir: Path, *, containing: str | None = None) -> Path:
    """Returns the run completed last; directories without a sound `run.json` do not count.

    Args:
        runs_dir: Where runs are kept.
        containing: Only runs that hold this file, such as `plan.json`.

    Raises:
        ArtefactError: there is none; the message says which command makes one.
    """
    found = [(run.created, run.name, path) for path, run in _sound_runs(runs_dir, containing)]
    if not found:
        with_file = f" with {containing}" if containing else ""
        raise ArtefactError(
            f"{runs_dir}: holds no run{with_file}; make one with `edgecompress compress MODEL`"
        )
    return max(found)[2]


def resolve_run(text: str | None, runs_dir: Path, *, containing: str | None = None) -> Path:
    """Returns the run meant by a path or a name; None means the latest.

    Raises:
        ArtefactError: there is no such run; the message lists the ones there are.
    """
    if text is None:
        return latest_run(runs_dir, containing=containing)
    for path in (Path(text), runs_dir / text):
        if (path / RUN_FILE).is_file():
            return path
    known = ", ".join(sorted(path.name for path, _ in _sound_runs(runs_dir, containing))) or "none"
    raise ArtefactError(f"run {text!r}: not found; {runs_dir} holds: {known}")


def check_name(name: str) -> None:
    """Makes sure a name can be a directory of its own, visible and within `runs_dir`.

    Raises:
        ConfigError: it cannot.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name):
        raise ConfigError(
            f"run name {name!r}: not usable; take letters, digits and _ . + - and begin with no . + or -"
        )


def work_directory(runs_dir: Path, name: str) -> Path:
    """Returns where an unfinished run of that name keeps what it has finished."""
    return runs_dir / f".{name}{WORK_SUFFIX}"


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python, of this package and of the `PACKAGES` installed."""
    versions = {"python": platform.python_version(), "edgecompress": __version__}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


@contextlib.contextmanager
def claim_name(
    runs_dir: Path, name: str | None, command: str, options: Mapping[str, object]
) -> Iterator[str]:
    """Yields `name`, or the first free numbered one, held against other processes until the end.

    Raises:
        ConfigError: `name` cannot be a directory name.
        ArtefactError: nothing can be written there.
    """
    if name is not None:
        check_name(name)
    _make_directory(runs_dir)
    if name is not None:
        yield name
        return
    stem = _stem(command, options)
    for number in itertools.count(1):
        candidate = f"{stem}-{number:03d}"
        with _claimed(runs_dir / f".{candidate}.claim") as ours:
            # looked at under the claim: another process may just have finished the run of this name
            free = not (runs_dir / candidate).exists() and not work_directory(runs_dir, candidate).exists()
            if ours and free:
                yield candidate
                return


@contextlib.contextmanager
def _claimed(file: Path) -> Iterator[bool]:
    """Yields whether the file is ours: made and locked. The claim of a killed process is nobody's."""
    try:
        stream = file.open("ab")
    except OSError as error:
        raise ArtefactError(f"{file.parent}: could not be written: {error.strerror or error}") from None
    with stream:
        ours = _is_locked(stream, file)
        try:
            yield ours
        finally:
            if ours:
                file.unlink(missing_ok=True)


def _is_locked(stream: BinaryIO, file: Path) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(stream.fileno()), file.stat())
    except (BlockingIOError, FileNotFoundError):  # another process has it, or has just removed it
        return False
    except OSError:  # some network disks lock nothing; two runs at once are then up to the user
        return True


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror or error
        raise ArtefactError(f"{path}: cannot be a directory: {problem}; give another --runs-dir") from None


def _stem(command: str, options: Mapping[str, object]) -> str:
    """`compress` and `zoo:resnet20` give `compress-resnet20`, `nets/mine.py:build` gives `compress-mine`.

    Commands on a run are called after what that run is called after: `recover-resnet20`.
    """
    model = str(options.get("model") or _subject_of_run(str(options.get("run") or "")))
    file = re.sub(r"\.py(:[^:/\\]+)?$", "", model)  # a file says more than the factory in it
    subject = re.split(r"[:/\\]", file.rstrip("/\\"))[-1]
    return re.sub(r"[^A-Za-z0-9_.+]+", "-", f"{command}-{subject}").strip("-.")[:80]


def _subject_of_run(path: str) -> str:
    name = Path(path).name
    return re.sub(r"^(compress|prune|search|train|recover)-(.+)-\d{3}$", r"\2", name)


def plain_options(options: Mapping[str, object]) -> dict[str, JsonValue]:
    """Returns what a run does as JSON gives it back: paths as text, tuples as lists."""
    what = {key: value for key, value in options.items() if key not in WHERE_OPTIONS}
    plain: dict[str, JsonValue] = json.loads(json.dumps(what, default=_path_text))
    return plain


def _path_text(value: object) -> str:
    assert isinstance(value, Path), f"option of type {type(value)} does not belong in run.json"
    return str(value)


def _files(directory: Path) -> tuple[str, ...]:
    return tuple(
        sorted(file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file())
    )


def all_runs(runs_dir: Path) -> list[tuple[Path, Run]]:
    """Returns every run with a sound `run.json`, the oldest first."""
    return sorted(_sound_runs(runs_dir, None), key=lambda pair: (pair[1].created, pair[1].name))


def _sound_runs(runs_dir: Path, containing: str | None) -> Iterator[tuple[Path, Run]]:
    if not runs_dir.is_dir():
        return
    for path in runs_dir.iterdir():
        hidden = path.name.startswith(".")
        if hidden or not path.is_dir() or (containing and not (path / containing).exists()):
            continue
        with contextlib.suppress(ArtefactError):
            yield path, read_run(path)
