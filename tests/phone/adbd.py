"""The device's side of adb over TCP, on a directory, with the faults of cables and phones to switch on."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phone.shell import serve_shell
from phone.sync import serve_sync
from phone.wire import Connection, Stream

FEATURES = ("shell_v2", "cmd", "stat_v2", "ls_v2", "fixed_push_mkdir")
OF_THE_PHONE = re.compile(r"(?<![\w/.])/(?=(?:data|sys)/|proc/(?:cpuinfo|loadavg))")
"""Where a path of the phone begins in a command; all others are this machine's own programs."""


@dataclass
class Switches:
    """What a test may change at any time."""

    features: tuple[str, ...] = FEATURES
    """Without `shell_v2` it is a phone of Android 6 or older."""
    authorised: bool = True
    answering: bool = True
    """Otherwise it takes connections and says nothing."""
    free_bytes: int | None = None
    """Room on the phone; None: enough."""
    cut_push_after_bytes: int | None = None
    cut_shell_after_s: float | None = None
    """Both pull the cable: the phone is gone until `plug_in`."""


class Daemon:
    """Serves one directory as the files of a phone, from a port of this machine."""

    def __init__(self, root: Path, properties: dict[str, str]) -> None:
        self.root, self.properties, self.switches = root, properties, Switches()
        self.connections: list[Connection] = []
        self.threads: list[threading.Thread] = []
        self.port = 0
        self.plug_in()

    @property
    def serial(self) -> str:
        """What adb calls it."""
        return f"127.0.0.1:{self.port}"

    def plug_in(self) -> None:
        """Listens, on the same port as before."""
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        self._start(self._accept)

    def unplug(self) -> None:
        """Cuts everything; adb finds nobody when it tries again."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Cuts the connections; adb comes back by itself."""
        for connection in self.connections:
            connection.cut()

    def close(self) -> None:
        """Ends all threads."""
        self.unplug()
        own = threading.current_thread()
        streams = [thread for connection in self.connections for thread in connection.threads]
        for thread in [*self.threads, *streams]:
            if thread is not own:
                thread.join(timeout=5)
                assert not thread.is_alive(), "a thread of the phone hangs"

    def find(self, path: str) -> Path:
        """Returns where a path of the phone lies; none leads out of its directory."""
        return self.root / os.path.normpath(f"/{path}").lstrip("/")

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        listener = self.listener
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = Connection(sock, self._banner(), self._service)
                self.connections.append(connection)
                self._start(connection.serve)

    def _banner(self) -> str | None:
        if not self.switches.answering:
            return ""
        if not self.switches.authorised:
            return None
        told = "".join(f"{name}={value};" for name, value in self.properties.items())
        return f"device::{told}features={','.join(self.switches.features)}"

    def _service(self, name: str) -> Callable[[Stream], None] | None:
        kind, _, argument = name.partition(":")
        if kind == "sync":
            return lambda stream: serve_sync(stream, find=self.find, write=self._written)
        if kind.split(",")[0] in ("shell", "exec"):
            return lambda stream: self._shell(stream, argument, packed="v2" in kind.split(","))
        return None

    def _shell(self, stream: Stream, command: str, *, packed: bool) -> None:
        environment = {"PATH": f"{self.root}/system/bin:/usr/bin:/bin", "PHONE_ROOT": str(self.root)}
        timer = threading.Timer(self.switches.cut_shell_after_s or 0, self.unplug)
        if self.switches.cut_shell_after_s is not None:
            timer.start()
        here = OF_THE_PHONE.sub(f"{self.root}/", command)
        serve_shell(stream, here, packed=packed, root=self.root, environment=environment)
        timer.cancel()

    def _written(self, size: int) -> None:
        """Counts what a push writes, and lets it fail when it is time."""
        if self.switches.free_bytes is not None:
            self.switches.free_bytes -= size
            if self.switches.free_bytes < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.switches.cut_push_after_bytes is not None:
            self.switches.cut_push_after_bytes -= size
            if self.switches.cut_push_after_bytes < 0:
                self.unplug()
