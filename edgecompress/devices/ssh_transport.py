"""Boards over OpenSSH: a transport that runs commands and copies files with the `ssh` program.

Nothing is asked: keys, known hosts and aliases are those of the user's own `~/.ssh`. All calls share
one connection: making one costs a board more time than most commands. Files go through
`cat` on the board rather than `scp`, which quotes remote names in two ways, depends on a server some
boards lack, and leaves half a file under its final name.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgecompress.devices.transport import Done
from edgecompress.errors import ConfigError, DeviceError

SSH = "ssh"
NO_SSH = "ssh: no such program; on Debian: apt-get install openssh-client"
MARK = "edgecompress-begin"
SSH_FAILED = 255
"""What `ssh` exits with when it fails itself; our commands never do."""
CONNECT_TIMEOUT_S = 10
CLOSE_TIMEOUT_S = 5.0
POLL_S = 0.01
SETTINGS = (
    "BatchMode=yes",  # a question would hang where nobody sees it
    f"ConnectTimeout={CONNECT_TIMEOUT_S}",
    "ServerAliveInterval=15",  # a board that was unplugged would be waited for in vain
    "ServerAliveCountMax=3",
    "LogLevel=ERROR",
    "ForwardX11=no",
    "ForwardAgent=no",
)
ADVICE = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "its host key has changed",
        "if it was set up anew, forget the old key with `ssh-keygen -R ADDRESS`",
    ),
    "Host key verification failed": (
        "its host key is not known",
        "connect once with `ssh {place}` and accept it",
    ),
    "Permission denied": ("permission denied", "give it your key with `ssh-copy-id {place}`"),
    "Could not resolve": ("its name is not known", "check `host` in the device file"),
    "Connection refused": ("refuses the connection", "is its ssh server running, and is the port right?"),
    "timed out": ("cannot be reached", "is it switched on and in this network?"),
    "No route to host": ("cannot be reached", "is it switched on and in this network?"),
    "Network is unreachable": ("cannot be reached", "is this machine in a network?"),
}
"""What `ssh` says, what that means, and what to do; the first that is found counts."""

RECEIVE = """
part="$0.part$$"
if cat >"$part" && [ "$(wc -c <"$part")" -eq "$1" ] && mv -f "$part" "$0"; then exit 0; fi
rm -f "$part"; exit 1
"""
"""Takes a file from standard input. A connection that breaks looks like the end of the file, so the
size is compared before the file gets its name."""


@dataclass(frozen=True)
class SshTransport:
    """A board reached over ssh; see `connected`."""

    host: str
    port: int | None = None
    shared: Path | None = None
    """Socket of an open connection; None or gone: every call makes its own."""

    def __post_init__(self) -> None:
        user, _, address = self.host.rpartition("@")
        # ssh would take such a word for an option, and options can run programs
        if not address or user.startswith("-") or address.startswith("-") or self.host.split() != [self.host]:
            raise ConfigError(f"host {self.host!r}: not an address; write user@address or a name")

    @property
    def where(self) -> str:
        """Returns the host, and the port where it is not the usual one."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    def run(self, command: Sequence[str], *, timeout_s: float) -> Done:
        """Runs a command given as its words; it finds nothing on its standard input.

        Raises:
            DeviceError: the board does not answer in time or is gone.
        """
        return self._call(command, timeout_s=timeout_s, sent=None)

    def push(self, local: Path, remote: str, *, timeout_s: float) -> None:
        """Copies a file to a name of its own, then renames it.

        Raises:
            DeviceError: the board has no room, refuses, or is gone.
        """
        try:
            size_bytes = local.stat().st_size
            done = self._call(["sh", "-c", RECEIVE, remote, str(size_bytes)], timeout_s=timeout_s, sent=local)
        except OSError as error:
            raise DeviceError(f"{local}: cannot be read: {error.strerror or error}") from None
        if done.code == 0:
            return
        if "No space left" in done.err:
            raise DeviceError(f"{self.where}: no room for {local.name!r}; free some storage on the board")
        raise DeviceError(f"{self.where}: {remote} could not be written: {_last_line(done.err)}")

    def _call(self, command: Sequence[str], *, timeout_s: float, sent: Path | None) -> Done:
        # The mark ends what a login script may have printed. English, because messages are looked at.
        # A shell that stays to the end: else a command killed by a signal would be a failure of ssh.
        script = f"echo {MARK}; LC_ALL=C; export LC_ALL; {shlex.join(command)}; exit $?"
        words = [*self.ssh_words(), "--", self.host, shlex.join(["sh", "-c", script])]
        code, out, err = _run(words, timeout_s=timeout_s, sent=sent, where=self.where, what=command[0])
        if code == SSH_FAILED:
            raise self.failure(err)
        before, mark, own = out.partition(f"{MARK}\n")
        if not mark:
            said = _last_line(err + before)
            raise DeviceError(f"{self.where}: its login shell runs no commands: {said}")
        return Done(code, own, err)

    def ssh_words(self) -> list[str]:
        """Returns `ssh` with our settings, to be followed by `--` and the host."""
        settings = [word for setting in SETTINGS for word in ("-o", setting)]
        port = [] if self.port is None else ["-p", str(self.port)]
        return [SSH, "-T", *settings, *port, "-S", "none" if self.shared is None else str(self.shared)]

    def failure(self, err: str) -> DeviceError:
        """Returns the error for what `ssh` said."""
        place = self.host if self.port is None else f"-p {self.port} {self.host}"
        return DeviceError(f"{self.where}: {_meaning(err, place=place)}")


@contextlib.contextmanager
def connected(host: str, port: int | None = None) -> Iterator[SshTransport]:
    """Opens a connection to a board and closes it at the end.

    Raises:
        ConfigError: the host is not an address.
        DeviceError: the board cannot be reached or refuses.
    """
    with tempfile.TemporaryDirectory(prefix="ssh-") as folder:
        transport = SshTransport(host, port, shared=Path(folder) / "to-board")
        log = Path(folder) / "log"
        words = [*transport.ssh_words(), "-M", "-N", "--", host]
        with log.open("w") as stream:
            process = _start(words, stderr=stream)
        try:
            _wait_until_open(transport, process, log)
            yield transport
        finally:
            _end(process)


def _start(words: Sequence[str], *, stderr: IO[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
    except FileNotFoundError:
        raise DeviceError(NO_SSH) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:  # waiting for a board that is gone
        process.kill()
        process.wait()


def _wait_until_open(transport: SshTransport, process: subprocess.Popen[bytes], log: Path) -> None:
    assert transport.shared is not None
    until_s = time.monotonic() + 2 * CONNECT_TIMEOUT_S  # to connect, and to agree on keys
    while not transport.shared.exists():
        if process.poll() is not None:
            raise transport.failure(log.read_text(encoding="utf-8", errors="replace"))
        if time.monotonic() > until_s:
            raise DeviceError(f"{transport.where}: does not answer; is it an ssh server?")
        time.sleep(POLL_S)


def _run(
    words: Sequence[str], *, timeout_s: float, sent: Path | None, where: str, what: str
) -> tuple[int, str, str]:
    source = Path("/dev/null") if sent is None else sent
    with source.open("rb") as stream:
        try:
            done = subprocess.run(
                words,
                stdin=stream,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError:
            raise DeviceError(NO_SSH) from None
        except subprocess.TimeoutExpired:
            raise DeviceError(f"{where}: `{what}` took over {timeout_s:g} s; is the board busy?") from None
    return done.returncode, done.stdout, done.stderr


def _meaning(err: str, *, place: str) -> str:
    for said, (meaning, advice) in ADVICE.items():
        if said in err:
            return f"{meaning}; {advice.format(place=place)}"
    return f"the connection broke: {_last_line(err)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "it said nothing"
