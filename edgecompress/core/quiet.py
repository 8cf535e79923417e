"""Keeps what foreign programs print off the terminal, C and C++ libraries included."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def quiet() -> Iterator[Callable[[], str]]:
    """Catches all that is written to standard output and error; yields a function that returns it.

    Works on the process's file descriptors, below Python: libraries written in C++ log there.
    Warnings and logging are silenced too. Not for use in two threads at once.
    """
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    with warnings.catch_warnings(), tempfile.TemporaryFile() as caught:
        warnings.simplefilter("ignore")
        with _redirected(caught.fileno()):
            try:
                yield lambda: _said(caught.fileno())
            finally:
                logging.disable(level)


@contextlib.contextmanager
def _redirected(target: int) -> Iterator[None]:
    """Points file descriptors 1 and 2 at `target`, and Python's streams with them."""
    _flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    stream = os.fdopen(os.dup(target), "w", encoding="utf-8", errors="replace")
    for number in kept:
        os.dup2(target, number)
    try:
        # pytest and notebooks put streams of their own in place of Python's
        with stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            yield
    finally:
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _said(descriptor: int) -> str:
    _flush()
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode("utf-8", errors="replace")
