"""Runs that can be killed: what they have finished stays in `runs/.NAME.work` until they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from edgecompress import __version__
from edgecompress.core.memo import Memo
from edgecompress.core.runs import (
    WORK_SUFFIX,
    NewRun,
    claim_name,
    create_run,
    plain_options,
    work_directory,
)
from edgecompress.core.store import read_record, write_record
from edgecompress.core.types import Record
from edgecompress.errors import ArtefactError, DeviceError, EdgeCompressError

BEGUN_FILE = "begun.json"
LOCK_FILE = "lock"


class Begun(Record):
    """What an unfinished run is to do. `begun.json`."""

    format_version: Literal[1] = 1
    name: str
    command: str
    options: dict[str, JsonValue]
    inputs: dict[str, str]
    """SHA-256 of what was read; it must be the same when the run goes on."""
    version: str
    """Of this package."""


@dataclass(frozen=True)
class Start:
    """A run to begin or to go on with."""

    runs_dir: Path
    command: str
    name: str | None
    options: Mapping[str, object]
    seed: int
    inputs: Mapping[str, str]
    overwrite: bool
    resuming: bool


@contextlib.contextmanager
def resumable_run(start: Start) -> Iterator[tuple[NewRun, Memo]]:
    """Yields a directory to write into as `create_run` does, and a memo of what is finished.

    Killed or interrupted, or when a device fails, the memo stays and `edgecompress resume` goes on. Any
    other error removes it.

    Raises:
        ArtefactError: the name is taken, begun by another process, or was begun with other inputs.
    """
    with claim_name(start.runs_dir, start.name, start.command, start.options) as name:
        work = work_directory(start.runs_dir, name)
        with _locked(work, start, name):
            try:
                with create_run(
                    start.runs_dir,
                    command=start.command,
                    name=name,
                    options=start.options,
                    seed=start.seed,
                    inputs=start.inputs,
                    overwrite=start.overwrite,
                ) as run:
                    yield run, Memo(work)
            except DeviceError as error:
                raise DeviceError(f"{error}; to go on: edgecompress resume {name}") from None
            except EdgeCompressError:
                shutil.rmtree(work, ignore_errors=True)
                raise
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _locked(work: Path, start: Start, name: str) -> Iterator[None]:
    """Begins the work or goes on with it, and keeps other processes out until the end."""
    fresh = not work.exists()
    if not fresh and not start.resuming and not start.overwrite:
        raise ArtefactError(
            f"{start.runs_dir / name}: was begun and is not finished; go on with "
            f"`edgecompress resume {name}`, or begin anew with --overwrite"
        )
    work.mkdir(parents=True, exist_ok=True)
    with (work / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtefactError(
                f"{start.runs_dir / name}: another process is working on it; wait, or give another --name"
            ) from None
        if fresh or not start.resuming:
            _begin(work, start, name)
        _check_same(work, start)
        _sweep(start.runs_dir, name)
        yield


def _begin(work: Path, start: Start, name: str) -> None:
    for old in work.iterdir():
        if old.name != LOCK_FILE:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    begun = Begun(
        name=name,
        command=start.command,
        options=plain_options(start.options),
        inputs=dict(start.inputs),
        version=__version__,
    )
    write_record(work / BEGUN_FILE, begun)


def _check_same(work: Path, start: Start) -> None:
    begun = read_record(work / BEGUN_FILE, Begun)
    changed = [key for key, value in begun.inputs.items() if start.inputs.get(key) != value]
    if changed:
        raise ArtefactError(
            f"{work}: {', '.join(changed)} changed since the run was begun; begin anew with --overwrite"
        )
    if begun.version != __version__:
        raise ArtefactError(
            f"{work}: was begun by edgecompress {begun.version}, this is {__version__}; "
            "begin anew with --overwrite"
        )


def _sweep(runs_dir: Path, name: str) -> None:
    """Removes what a process that was killed left behind: half-written directories."""
    for left in runs_dir.glob(f".{name}.*"):
        if left.is_dir() and left.suffix not in (WORK_SUFFIX, ".old"):
            shutil.rmtree(left, ignore_errors=True)


def find_unfinished(runs_dir: Path, name: str | None = None) -> Begun:
    """Returns an unfinished run: of that name (or path), or the only one there is.

    Raises:
        ArtefactError: there is none, or several and no name.
    """
    if name is not None:
        work = work_directory(runs_dir, Path(name).name)
        if not (work / BEGUN_FILE).is_file():
            known = ", ".join(_unfinished(runs_dir)) or "none"
            raise ArtefactError(f"{name}: is not an unfinished run of {runs_dir}; unfinished are: {known}")
        return read_record(work / BEGUN_FILE, Begun)
    names = _unfinished(runs_dir)
    if len(names) == 1:
        return find_unfinished(runs_dir, names[0])
    found = f"unfinished are: {', '.join(names)}; say which" if names else "no run is unfinished"
    raise ArtefactError(f"{runs_dir}: {found}")


def _unfinished(runs_dir: Path) -> list[str]:
    found = runs_dir.glob(f".*{WORK_SUFFIX}/{BEGUN_FILE}")
    return sorted(path.parent.name.removeprefix(".").removesuffix(WORK_SUFFIX) for path in found)
