"""A board reached over ssh: this machine's own sshd on a loopback port, with its own keys and settings."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
SSH = shutil.which("ssh")
needs_sshd = pytest.mark.skipif(
    SSHD is None or SSH is None,
    reason="sshd or ssh is missing (Debian: apt-get install openssh-server openssh-client)",
)

SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HOME={folder} XDG_CACHE_HOME="{folder}/board cache"
"""
CLIENT = """\
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
"""


@dataclass(frozen=True)
class Board:
    """A running sshd, and a folder whose `ssh` leads to it and not to the user's own keys."""

    folder: Path
    port: int

    @property
    def host(self):
        return f"{getpass.getuser()}@127.0.0.1"

    @property
    def home(self):
        """Where we keep things on the board."""
        return self.folder / "board cache" / "edgecompress"

    def programs(self):
        return self.folder / "bin"

    def know_host(self, key="host_key"):
        public = (self.folder / f"{key}.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")

    def admit_user(self, key="user_key"):
        shutil.copy(self.folder / f"{key}.pub", self.folder / "authorized_keys")


@contextlib.contextmanager
def serving(folder):
    """Starts sshd; it knows its user, and the user knows it."""
    for name in ("host_key", "user_key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    board = Board(folder, _free_port())
    (folder / "server").write_text(SERVER.format(folder=folder, port=board.port))
    (folder / "client").write_text(CLIENT.format(folder=folder))
    board.programs().mkdir()
    wrapper = board.programs() / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {SSH} -F "{folder}/client" "$@"\n')
    wrapper.chmod(0o755)
    board.know_host()
    board.admit_user()
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd of root locks itself in
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "server")], stderr=log)
    try:
        _wait_for(board.port, process)
        yield board
    finally:
        process.terminate()
        process.wait()


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _wait_for(port, process):
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, "sshd did not start"
        time.sleep(0.05)
    raise AssertionError("sshd does not listen")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One board for all tests of a module, with the `ssh` on PATH that leads to it."""
    with serving(tmp_path_factory.mktemp("sshd")) as board, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(board.programs()), prepend=os.pathsep)
        yield board


@pytest.fixture
def ssh_board(server):
    """The board; what a test changed of its keys is put right afterwards."""
    yield server
    server.know_host()
    server.admit_user()
