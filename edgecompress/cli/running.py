"""What surrounds every command: errors in one line, quiet libraries, progress, the result on stdout."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import threading
import warnings
from _thread import interrupt_main
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from edgecompress.core.progress import NO_PROGRESS, Progress, terminal_progress
from edgecompress.errors import EdgeCompressError

if TYPE_CHECKING:
    from edgecompress.core.types import Record

LESS_MEMORY = "close other programs, or use fewer or smaller images"
FAULTS_OF_SYSTEM = {
    errno.ENOSPC: "free some space, or set TMPDIR to another disk",
    errno.EDQUOT: "free some space, or set TMPDIR to another disk",
    errno.EFBIG: "write to a disk that allows larger files",
    errno.EROFS: "write to another folder",
    errno.EACCES: "get permission for it, or use another",
    errno.EPERM: "get permission for it, or use another",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "raise the limit with `ulimit -n`",
    errno.ENOMEM: LESS_MEMORY,
    errno.EIO: "check the disk",
}
"""What goes wrong with disks and memory wherever they are used, and what to do."""
STOPPED = 130
"""What shells return for a command ended by Ctrl-C."""
_AGAIN_S = 0.05


@contextlib.contextmanager
def running() -> Iterator[Progress]:
    """Surrounds the work of a command and yields where to show how far it is.

    Whatever libraries or a user's own model file print goes to stderr, so that stdout holds the
    result alone.
    """
    from edgecompress.core.scratch import own_scratch  # imports pydantic, which --help should not wait for

    # read when torch starts its threads: waiting ones must not spin away the cores of a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with (
        one_line_errors(),
        own_scratch(),
        _quiet_libraries(),
        _no_lost_interrupts(),
        terminal_progress() as progress,
        _stdout_to_stderr(),
    ):
        yield NO_PROGRESS if _is_one_of_many() else progress


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns an error the user can fix into one line and exit code 1; a bug keeps its traceback."""
    try:
        yield
    except EdgeCompressError as error:
        raise _told(str(error)) from None
    except (OSError, MemoryError, RuntimeError) as error:
        said = _fault_of_system(error)
        if said is None:
            raise
        raise _told(said) from None
    except KeyboardInterrupt as stop:
        typer.echo(f"edgecompress: stopped{f'; {stop}' if str(stop) else ''}", err=True)
        raise typer.Exit(STOPPED) from None


def _told(message: str) -> typer.Exit:
    typer.echo(f"edgecompress: {' '.join(message.split())}", err=True)
    return typer.Exit(1)


def _fault_of_system(error: Exception) -> str | None:
    """Returns what a full disk or memory is called; None for anything that is a bug of ours."""
    if isinstance(error, OSError) and error.errno in FAULTS_OF_SYSTEM:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; {FAULTS_OF_SYSTEM[error.errno]}"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch raises RuntimeError
        return f"out of memory; {LESS_MEMORY}"
    return None


def show(result: Record, *, as_json: bool) -> None:
    """Prints a result on stdout, as tables or as JSON; of the processes of torchrun the first one does."""
    if _is_one_of_many():
        return
    if as_json:
        from edgecompress.core.store import to_json

        typer.echo(to_json(result))
        return
    from rich.console import Console

    from edgecompress.report.text import render

    Console(highlight=False).print(render(result))


def _is_one_of_many() -> bool:
    return os.environ.get("RANK", "0") != "0"


@contextlib.contextmanager
def _no_lost_interrupts() -> Iterator[None]:
    """Lets Ctrl-C stop the command whenever it is pressed.

    Python drops one that comes while a finaliser runs, and LiteRT's interpreter has a slow one. It is sent
    again a moment later.
    """
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        timers.append(threading.Timer(_AGAIN_S, interrupt_main))
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    with contextlib.redirect_stdout(sys.stderr):  # looked up here, after the progress bars have taken it
        yield


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Hides what torch and the exporters say to programmers, unless asked for with -W or PYTHONWARNINGS."""
    if sys.warnoptions:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
