"""ADB's service `sync:`, which copies files to the device."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

from phone.wire import Closed, Stream

LARGEST_CHUNK = 64 * 1024


def serve_sync(stream: Stream, *, find: Callable[[str], Path], write: Callable[[int], None]) -> None:
    """Answers requests until the host is done. `write` is told of every chunk; it may cut or refuse.

    There is no listing and no copying back: nothing here needs them.
    """
    while True:
        request, size = struct.unpack("<4sI", stream.read(8))
        if request == b"QUIT":
            return
        path = stream.read(size).decode()
        if request == b"SEND":
            _receive_file(stream, path, find=find, write=write)
        elif request in (b"STAT", b"STA2", b"LST2"):
            stream.write(_status(request, find(path)))
        else:
            raise Closed


def _status(request: bytes, path: Path) -> bytes:
    found, fault = None, 0
    try:
        found = path.stat() if request == b"STA2" else path.lstat()
    except OSError as error:
        fault = error.errno or errno.EIO
    if request == b"STAT":
        return struct.pack(
            "<4s3I", request, *((found.st_mode, found.st_size, int(found.st_mtime)) if found else (0, 0, 0))
        )
    if found is None:
        return struct.pack("<4sIQQIIIIQqqq", request, fault, *(0,) * 10)
    who = (found.st_dev, found.st_ino, found.st_mode, found.st_nlink, found.st_uid, found.st_gid)
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    return struct.pack("<4sIQQIIIIQqqq", request, 0, *who, found.st_size, *times)


def _receive_file(
    stream: Stream, request: str, *, find: Callable[[str], Path], write: Callable[[int], None]
) -> None:
    """Takes `path,mode`, chunks and the time; what was written before a fault stays, as the worst case."""
    name, _, mode = request.rpartition(",")
    fault = None
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(find(name).open("wb"))
        except OSError as error:
            file, fault = None, error
        while (chunk := _chunk(stream)) is not None:
            try:
                if file is not None and fault is None:
                    file.write(chunk)
                    file.flush()
                    write(len(chunk))
            except OSError as error:
                fault = error
    if fault is not None:
        said = (os.strerror(fault.errno) if fault.errno else str(fault)).encode()
        stream.write(struct.pack("<4sI", b"FAIL", len(said)) + said)
    else:
        find(name).chmod(int(mode) & 0o777)
        stream.write(struct.pack("<4sI", b"OKAY", 0))


def _chunk(stream: Stream) -> bytes | None:
    kind, size = struct.unpack("<4sI", stream.read(8))
    if kind == b"DONE":  # its size is the time of the file
        return None
    if kind != b"DATA" or size > LARGEST_CHUNK:
        raise Closed
    return stream.read(size)
