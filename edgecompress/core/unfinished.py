"""Runs that can be killed: what they have finished stays in `runs/.NAME.work` until they are complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from pydantic import JsonValue

from edgecompress import __version__
from edgecompress.core.memo import Memo
from edgecompress.core.runs import (
    RUN_FILE,
    WORK_SUFFIX,
    NewRun,
    claim_name,
    create_run,
    plain_options,
    read_run,
    work_directory,
)
from edgecompress.core.store import read_record, write_record
from edgecompress.core.types import Record
from edgecompress.errors import ArtefactError, DeviceError, EdgeCompressError

BEGUN_FILE = "begun.json"
LOCK_FILE = "lock"
USUAL_RUNS = Path("runs")


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
    directory: str
    """Where the command was called: relative paths among its options start there."""
    overwrite: bool
    """Whether it was to replace a run of its name."""


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
    parent: str | None = None
    """Name of the run this one starts from."""


@contextlib.contextmanager
def resumable_run(start: Start) -> Iterator[tuple[NewRun, Memo]]:
    """Yields a directory to write into as `create_run` does, and a memo of what is finished.

    Killed or interrupted, or when a device or a disk fails, the memo stays and `edgecompress resume` goes
    on. Any other error removes it.

    Raises:
        ArtefactError: the name is taken, begun by another process, or was begun with other inputs.
    """
    with (
        claim_name(start.runs_dir, start.name, start.command, start.options) as name,
        _locked(work_directory(start.runs_dir, name), start, name) as work,
        _kept_for_later(work, start.runs_dir, name) as memo,
        create_run(
            start.runs_dir,
            command=start.command,
            name=name,
            options=start.options,
            seed=start.seed,
            inputs=start.inputs,
            parent=start.parent,
            overwrite=_may_replace(start, work, name),
        ) as run,
    ):
        yield run, memo


@contextlib.contextmanager
def _kept_for_later(work: Path, runs_dir: Path, name: str) -> Iterator[Memo]:
    """Removes the work at the end, unless it is of use to `edgecompress resume`."""
    memo = Memo(work)
    go_on = f"to continue: {resume_command(runs_dir, name)}"
    try:
        yield memo
    except KeyboardInterrupt:
        raise KeyboardInterrupt(go_on) from None
    except (DeviceError, ArtefactError) as error:
        if not _has_finished_steps(work):
            _remove(work)
            raise
        raise type(error)(f"{error}; {go_on}") from None
    except EdgeCompressError:
        _remove(work)
        raise
    _remove(work)


def resume_command(runs_dir: Path, name: str) -> str:
    """Returns what to type to go on with a run."""
    where = "" if runs_dir == USUAL_RUNS else f" --runs-dir {runs_dir}"
    return f"edgecompress resume {name}{where}"


def _has_finished_steps(work: Path) -> bool:
    return any(path.name not in (BEGUN_FILE, LOCK_FILE) for path in work.iterdir())


def _remove(work: Path) -> None:
    (work / BEGUN_FILE).unlink(missing_ok=True)  # first: without it the rest counts for nothing
    shutil.rmtree(work, ignore_errors=True)


def _may_replace(start: Start, work: Path, name: str) -> bool:
    """Whether a run of that name may be replaced: as was said when it was begun, or it is this very one.

    The latter was killed when it stood, and before what it had kept was removed.
    """
    if not start.resuming:
        return start.overwrite
    begun, path = read_record(work / BEGUN_FILE, Begun), start.runs_dir / name
    if begun.overwrite or not (path / RUN_FILE).is_file():
        return begun.overwrite
    run = read_run(path)
    return (run.command, run.options, run.inputs) == (begun.command, begun.options, begun.inputs)


@contextlib.contextmanager
def _locked(work: Path, start: Start, name: str) -> Iterator[Path]:
    """Begins the work or goes on with it, and keeps other processes out until the end."""
    with _lock(work, start.runs_dir / name):
        begun = (work / BEGUN_FILE).is_file()
        if begun and not start.resuming and not start.overwrite:
            raise ArtefactError(
                f"{start.runs_dir / name}: is unfinished; continue with "
                f"`{resume_command(start.runs_dir, name)}`, or start over with --overwrite"
            )
        if not begun or not start.resuming:
            _begin(work, start, name)
        _check_same(work, start)
        _sweep(start.runs_dir, name, claimed=start.name is None)
        yield work


def _lock(work: Path, path: Path) -> TextIO:
    """Returns the lock of a directory, held; a process that is killed lets go of it by itself.

    Raises:
        ArtefactError: another process holds it, or nothing can be written there.
    """
    while True:
        try:
            work.mkdir(parents=True, exist_ok=True)
            stream = (work / LOCK_FILE).open("w", encoding="utf-8")
        except FileNotFoundError:  # another process has just ended and removed it
            continue
        except OSError as error:
            problem = error.strerror or error
            raise ArtefactError(f"{path}: cannot be written: {problem}; give another --runs-dir") from None
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(stream.fileno()), (work / LOCK_FILE).stat()):
                return stream
        except BlockingIOError:
            stream.close()
            raise ArtefactError(
                f"{path}: another process is working on it; wait, or give another --name"
            ) from None
        except FileNotFoundError:
            pass
        stream.close()  # the other ended in between, and removed its lock


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
        directory=str(Path.cwd()),
        overwrite=start.overwrite,
    )
    try:
        write_record(work / BEGUN_FILE, begun)
    except ArtefactError:  # a full disk: what has not begun takes no name
        _remove(work)
        raise


def _check_same(work: Path, start: Start) -> None:
    begun = read_record(work / BEGUN_FILE, Begun)
    names = sorted(begun.inputs.keys() | start.inputs.keys())
    changed = [name for name in names if start.inputs.get(name) != begun.inputs.get(name)]
    if changed:
        raise ArtefactError(
            f"{work}: {', '.join(changed)} changed since the run was started; start over with --overwrite"
        )
    if begun.version != __version__:
        raise ArtefactError(
            f"{work}: was started by edgecompress {begun.version}, this is {__version__}; "
            "start over with --overwrite"
        )


def _sweep(runs_dir: Path, name: str, *, claimed: bool) -> None:
    """Removes what a process that was killed left behind; an old run that was being replaced comes back."""
    temporary = re.compile(re.escape(f".{name}.") + "[a-z0-9_]{8}")  # of `new_directory`
    for left in runs_dir.glob(f".{name}.*"):
        if left.is_dir() and temporary.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)
    if not claimed:
        (runs_dir / f".{name}.claim").unlink(missing_ok=True)
    old = runs_dir / f".{name}.old"
    if old.is_dir() and not (runs_dir / name).exists():
        old.rename(runs_dir / name)
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class Unfinished:
    """An unfinished run and where it is."""

    runs_dir: Path
    begun: Begun


def find_unfinished(runs_dir: Path, name: str | None = None) -> Unfinished:
    """Returns an unfinished run: of that name (or path), or the only one there is.

    Raises:
        ArtefactError: there is none, or several and no name.
    """
    if name is None:
        names = _unfinished(runs_dir)
        if len(names) != 1:
            found = f"unfinished are: {', '.join(names)}; say which" if names else "no run is unfinished"
            raise ArtefactError(f"{runs_dir}: {found}")
        name = names[0]
    path = Path(name)
    runs_dir = runs_dir if path.name == name else path.parent
    file = work_directory(runs_dir, path.name) / BEGUN_FILE
    if file.is_file():
        return Unfinished(runs_dir, read_record(file, Begun))
    if (runs_dir / path.name / RUN_FILE).is_file():
        raise ArtefactError(f"{runs_dir / path.name}: is finished; there is nothing to resume")
    known = ", ".join(_unfinished(runs_dir)) or "none"
    raise ArtefactError(f"{name}: is not an unfinished run of {runs_dir}; unfinished are: {known}")


def unfinished_runs(runs_dir: Path) -> list[Begun]:
    """Returns all unfinished runs whose files are sound, by name."""
    found = []
    for name in _unfinished(runs_dir):
        with contextlib.suppress(ArtefactError):
            found.append(read_record(work_directory(runs_dir, name) / BEGUN_FILE, Begun))
    return found


def _unfinished(runs_dir: Path) -> list[str]:
    found = runs_dir.glob(f".*{WORK_SUFFIX}/{BEGUN_FILE}")
    return sorted(path.parent.name.removeprefix(".").removesuffix(WORK_SUFFIX) for path in found)
