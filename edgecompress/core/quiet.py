"""Keeps what foreign programs print off the terminal, C and C++ libraries included."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[Callable[[], str]]:
    """Catches all that is written to standard output and error; yields a function that returns it.

    Works on the process's file descriptors, below Python: libraries written in C++ log there.
    Warnings and logging are silenced too. A second thread waits until the first is done, as descriptors
    belong to the process. What was caught is gone at the end.
    """
    with _ONE_AT_A_TIME, _without_logging(), warnings.catch_warnings(), tempfile.TemporaryFile() as caught:
        warnings.simplefilter("ignore")
        with _redirected(caught.fileno()):
            yield lambda: _said(caught.fileno())


@contextlib.contextmanager
def _without_logging() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(max(level, logging.ERROR))
    try:
        yield
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
        _flush()  # what C still holds back would reach the terminal later
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)


def _flush() -> None:
    """Empties the buffers of Python and of C."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as it is where the caller closed it
            stream.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)


def _said(descriptor: int) -> str:
    _flush()
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode("utf-8", errors="replace")
