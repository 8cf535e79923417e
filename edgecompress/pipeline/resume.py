"""`edgecompress resume`: goes on with a run that was killed, as it was asked for then."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from edgecompress.core.progress import NO_PROGRESS, Progress
from edgecompress.core.runs import work_directory
from edgecompress.core.store import read_record
from edgecompress.core.types import Plan, Record
from edgecompress.core.unfinished import Begun, Unfinished, find_unfinished
from edgecompress.errors import ArtefactError
from edgecompress.nets.artefact import PLAN_FILE
from edgecompress.nets.consent import check_consent
from edgecompress.pipeline.recover import recover
from edgecompress.pipeline.search import search
from edgecompress.pipeline.synthesize import synthesize
from edgecompress.pipeline.train import train

COMMANDS: dict[str, Callable[..., Record]] = {
    "recover": recover,
    "search": search,
    "synthesize": synthesize,
    "train": train,
}
"""Those whose runs can go on."""
CODE_OPTIONS = ("model", "teacher", "run")
"""Options that name code, or a run whose plan does."""
NOT_OPTIONS = {"name", "runs_dir", "overwrite", "resuming", "progress"}
"""Of a command: `resume` gives them itself."""


def resume(
    run: str | None = None, *, runs_dir: Path = Path("runs"), progress: Progress = NO_PROGRESS
) -> Record:
    """Goes on with an unfinished run (the only one when none is named) and returns its result.

    It works in the folder the run was begun in, where relative paths among its options start.

    Raises:
        ArtefactError: there is no such run, what it reads has changed, or it names code that is not trusted.
        EdgeCompressError: as the command itself.
    """
    found = find_unfinished(runs_dir, run)
    begun = found.begun
    if begun.command not in COMMANDS:
        raise ArtefactError(f"{begun.name}: {begun.command!r} cannot be resumed; start over with --overwrite")
    command = COMMANDS[begun.command]
    try:
        options = typed_options(command, begun.options)
    except ValidationError as error:
        said = error.errors()[0]["msg"].lower()
        raise ArtefactError(f"{begun.name}: begun.json holds an option of the wrong type: {said}") from None
    _check_code(found)
    with _begun_in(begun, found.runs_dir) as place:
        return command(**options, name=begun.name, runs_dir=place, resuming=True, progress=progress)


def _check_code(found: Unfinished) -> None:
    """Makes sure that code a run names may be run: as plans do, unfinished runs come from anywhere.

    That is asked before the folder is changed, for it is up to the run which one it was begun in.
    """
    start, work = Path(found.begun.directory), work_directory(found.runs_dir, found.begun.name)
    if not _is_there(start):
        return  # nothing is run then, and the message will be about that
    for named in (found.begun.options.get(key) for key in CODE_OPTIONS):
        if isinstance(named, str) and _is_there(start / named / PLAN_FILE):
            source = read_record(start / named / PLAN_FILE, Plan).model.source
            check_consent(source, artefact=start / named, start=start)
        elif isinstance(named, str):
            check_consent(named, artefact=work, start=start)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long for any file
        return False


@contextlib.contextmanager
def _begun_in(begun: Begun, runs_dir: Path) -> Iterator[Path]:
    """Works in the folder a run was begun in; yields where its runs are, seen from there."""
    place = runs_dir if Path(begun.directory) == Path.cwd() else runs_dir.resolve()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(contextlib.chdir(begun.directory))
        except (OSError, ValueError) as error:
            raise ArtefactError(
                f"{begun.name}: was begun in {begun.directory}, which cannot be used: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from None
        yield place


def typed_options(command: Callable[..., object], options: Mapping[str, object]) -> dict[str, Any]:
    """Returns options from JSON with the types a command takes: lists as tuples, text as paths."""
    hints = typing.get_type_hints(command)
    names = inspect.signature(command).parameters.keys() - NOT_OPTIONS
    return {
        key: TypeAdapter(hints[key]).validate_python(value) for key, value in options.items() if key in names
    }
