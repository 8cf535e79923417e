"""What surrounds every command: errors in one line, quiet libraries, progress, the result on stdout."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from edgecompress.core.progress import NO_PROGRESS, Progress, terminal_progress
from edgecompress.errors import EdgeCompressError

if TYPE_CHECKING:
    from edgecompress.core.types import Record

STOPPED = 130
"""What shells return for a command ended by Ctrl-C."""


@contextlib.contextmanager
def running() -> Iterator[Progress]:
    """Surrounds the work of a command and yields where to show how far it is.

    Whatever libraries or a user's own model file print goes to stderr, so that stdout holds the
    result alone.
    """
    # read when torch starts its threads: waiting ones must not spin away the cores of a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with one_line_errors(), _quiet_libraries(), terminal_progress() as progress, _stdout_to_stderr():
        yield NO_PROGRESS if _is_one_of_many() else progress


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns an error the user can fix into one line and exit code 1; a bug keeps its traceback."""
    try:
        yield
    except EdgeCompressError as error:
        typer.echo(f"edgecompress: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as stop:
        typer.echo(f"edgecompress: stopped{f'; {stop}' if str(stop) else ''}", err=True)
        raise typer.Exit(STOPPED) from None


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
