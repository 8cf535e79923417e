"""ADB's service `shell`, old and new.

The new one (`shell_v2`) packs output, errors and the exit code. The old one is a terminal: lines end
in CR LF, errors are mixed in, there is no exit code, and the end of the input is never told.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from phone.wire import Closed, Stream

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)


def serve_shell(
    stream: Stream, command: str, *, packed: bool, root: Path, environment: Mapping[str, str]
) -> None:
    """Runs a command; when the host goes away its shell is hung up, but what it started runs on."""
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if packed else subprocess.STDOUT,
        cwd=root,
        env=dict(environment),
        start_new_session=True,
    ) as process:
        feeder = threading.Thread(target=_feed, args=(stream, process, packed), daemon=True)
        feeder.start()
        with contextlib.suppress(Closed, OSError):
            _pass_on(stream, process, packed=packed)
        if stream.closed:
            process.send_signal(signal.SIGHUP)
        code = process.wait()
        with contextlib.suppress(Closed, OSError):
            if packed:
                stream.write(_packet(EXIT, bytes([code if code >= 0 else 128 - code])))
        stream.arrived.put(None)
        feeder.join()


def _packet(kind: int, data: bytes) -> bytes:
    return struct.pack("<BI", kind, len(data)) + data


def _pass_on(stream: Stream, process: subprocess.Popen[bytes], *, packed: bool) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, STDOUT)
        if packed:
            selector.register(process.stderr, selectors.EVENT_READ, STDERR)
        while selector.get_map():
            if stream.closed:
                raise Closed
            for key, _ in selector.select(timeout=0.05):
                data = os.read(key.fd, 32 * 1024)
                if not data:
                    selector.unregister(key.fileobj)
                else:
                    stream.write(_packet(key.data, data) if packed else data.replace(b"\n", b"\r\n"))


def _feed(stream: Stream, process: subprocess.Popen[bytes], packed: bool) -> None:
    """Passes the host's input on until it ends."""
    with contextlib.suppress(Closed, OSError, ValueError):
        while True:
            if packed:
                kind, size = struct.unpack("<BI", stream.read(5))
                data = stream.read(size)
                if kind == CLOSE_STDIN:
                    process.stdin.close()
                elif kind == STDIN:
                    process.stdin.write(data)
                    process.stdin.flush()
            else:
                process.stdin.write(stream.read_some())
                process.stdin.flush()
