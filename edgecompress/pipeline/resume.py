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
from edgecompress.core.types import Record
from edgecompress.core.unfinished import Begun, find_unfinished
from edgecompress.errors import ArtefactError
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
NOT_OPTIONS = {"name", "runs_dir", "overwrite", "resuming", "progress"}
"""Of a command: `resume` gives them itself."""


def resume(
    run: str | None = None, *, runs_dir: Path = Path("runs"), progress: Progress = NO_PROGRESS
) -> Record:
    """Goes on with an unfinished run (the only one when none is named) and returns its result.

    It works in the folder the run was begun in, where relative paths among its options start.

    Raises:
        ArtefactError: there is no such run, or what it reads has changed.
        EdgeCompressError: as the command itself.
    """
    found = find_unfinished(runs_dir, run)
    begun = found.begun
    if begun.command not in COMMANDS:
        raise ArtefactError(f"{begun.name}: {begun.command!r} cannot go on; begin anew with --overwrite")
    command = COMMANDS[begun.command]
    try:
        options = typed_options(command, begun.options)
    except ValidationError as error:
        said = error.errors()[0]["msg"].lower()
        raise ArtefactError(f"{begun.name}: begun.json holds an option of the wrong type: {said}") from None
    with _begun_in(begun, found.runs_dir) as place:
        return command(**options, name=begun.name, runs_dir=place, resuming=True, progress=progress)


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
