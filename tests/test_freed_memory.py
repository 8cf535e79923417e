"""Memory that was freed goes back to the system."""

import ctypes
import os
from pathlib import Path

import pytest

from edgecompress.core.freed_memory import give_back

PIECES, PIECE_BYTES = 20_000, 4096


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_what_is_free_below_what_is_used_is_given_back():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    give_back()
    pieces = [libc.malloc(PIECE_BYTES) for _ in range(PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE_BYTES)
    for piece in pieces[:-1]:  # the last one keeps the heap from shrinking
        libc.free(piece)
    before = resident_bytes()
    give_back()
    assert before - resident_bytes() > PIECES * PIECE_BYTES / 2
    libc.free(pieces[-1])


def test_a_library_without_a_way_to_is_left_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(ctypes, "CDLL", asked.append)  # returns None, which has no functions
    give_back()
    assert asked == [None]
