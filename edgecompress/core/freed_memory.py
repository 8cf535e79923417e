"""Gives freed memory back to the system: glibc keeps what many medium blocks took, a gigabyte at times."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Returns what is free to the system; does nothing where the C library has no way to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
