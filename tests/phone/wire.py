"""ADB's wire protocol, the device's side: a connection carries numbered streams of bytes.

A message is six little-endian words (command, two arguments, length, checksum, command inverted)
and its data. Every WRTE is answered by an OKAY before the next one on that stream.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable

VERSION = 0x01000001
"""From this version on nobody checks the checksum."""
MAX_DATA = 256 * 1024
AUTH_TOKEN, AUTH_SIGNATURE = 1, 2
"""A third kind brings the host's key, and then the phone waits for its owner."""


class Closed(Exception):
    """The other side went away."""


class Stream:
    """One service the host has opened."""

    def __init__(self, connection: Connection, own: int, theirs: int) -> None:
        self.connection, self.own, self.theirs = connection, own, theirs
        self.arrived: queue.Queue[bytes | None] = queue.Queue()
        self.acknowledged = threading.Semaphore(0)
        self.buffer = b""
        self.closed = False

    def read(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self.buffer += self._next()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def read_some(self) -> bytes:
        data, self.buffer = self.buffer or self._next(), b""
        return data

    def _next(self) -> bytes:
        data = self.arrived.get()
        if data is None:
            raise Closed
        return data

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), self.connection.max_data):
            if self.closed:
                raise Closed
            part = data[start : start + self.connection.max_data]
            self.connection.send(b"WRTE", self.own, self.theirs, part)
            self.acknowledged.acquire()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                self.connection.send(b"CLSE", self.own, self.theirs)

    def host_closed(self) -> None:
        self.closed = True
        self.arrived.put(None)
        self.acknowledged.release()


class Connection:
    """One host that has connected; `serve` returns when it is gone."""

    def __init__(
        self,
        sock: socket.socket,
        banner: str | None,
        service: Callable[[str], Callable[[Stream], None] | None],
    ) -> None:
        """Takes what to answer a host: None asks who it is and trusts nobody; empty says nothing."""
        self.sock, self.banner, self.service = sock, banner, service
        self.max_data = 4096
        self.streams: dict[int, Stream] = {}
        self.threads: list[threading.Thread] = []
        self.opened = 0
        self.sending = threading.Lock()

    def send(self, command: bytes, first: int, second: int, data: bytes = b"") -> None:
        number = int.from_bytes(command, "little")
        head = struct.pack("<6I", number, first, second, len(data), sum(data), number ^ 0xFFFFFFFF)
        with self.sending:
            self.sock.sendall(head + data)

    def cut(self) -> None:
        """Ends the connection at once, as a pulled cable does."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        handlers = {
            b"CNXN": self._connect,
            b"OPEN": self._open,
            b"OKAY": self._acknowledge,
            b"WRTE": self._write,
            b"CLSE": self._close,
        }
        try:
            while True:
                command, first, second, size, _, _ = struct.unpack("<4s5I", self._receive(24))
                data = self._receive(size)
                if command in handlers:
                    handlers[command](first, second, data)
                elif command == b"AUTH" and first == AUTH_SIGNATURE:  # of a key this phone does not know
                    self.send(b"AUTH", AUTH_TOKEN, 0, bytes(20))
        except (Closed, OSError):
            pass
        finally:
            for stream in list(self.streams.values()):
                stream.host_closed()
            self.sock.close()

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise Closed
            data += part
        return data

    def _connect(self, version: int, max_data: int, _: bytes) -> None:
        self.max_data = min(max_data, MAX_DATA)
        if self.banner is None:
            self.send(b"AUTH", AUTH_TOKEN, 0, bytes(20))
        elif self.banner:
            self.send(b"CNXN", min(version, VERSION), MAX_DATA, self.banner.encode())

    def _open(self, theirs: int, _: int, data: bytes) -> None:
        body = self.service(data.rstrip(b"\0").decode())
        if body is None:
            return self.send(b"CLSE", 0, theirs)
        self.opened += 1
        stream = self.streams[self.opened] = Stream(self, self.opened, theirs)
        self.send(b"OKAY", stream.own, theirs)
        thread = threading.Thread(target=_run, args=(body, stream), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _acknowledge(self, _: int, own: int, __: bytes) -> None:
        if own in self.streams:
            self.streams[own].acknowledged.release()

    def _write(self, theirs: int, own: int, data: bytes) -> None:
        if own in self.streams:
            self.streams[own].arrived.put(data)
            self.send(b"OKAY", own, theirs)
        else:
            self.send(b"CLSE", 0, theirs)

    def _close(self, _: int, own: int, __: bytes) -> None:
        stream = self.streams.pop(own, None)
        if stream is not None:
            stream.host_closed()


def _run(body: Callable[[Stream], None], stream: Stream) -> None:
    with contextlib.suppress(Closed, OSError):
        body(stream)
    stream.close()
