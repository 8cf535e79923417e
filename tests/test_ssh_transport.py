"""Reaching a board over the real ssh and sshd."""

import os
import socket
import subprocess

import pytest
from ssh_server import needs_sshd, server, ssh_board

from edgecompress.devices.ssh_transport import RECEIVE, SshTransport, connected
from edgecompress.errors import ConfigError, DeviceError

__all__ = ["server", "ssh_board"]
pytestmark = needs_sshd


@pytest.fixture(scope="module")
def transport(server):
    with connected(server.host, server.port) as one:
        yield one


def connect(ssh_board, port=None):
    """Makes a connection and ends it."""
    with connected(ssh_board.host, port or ssh_board.port):
        pass


def check_one_line(caught, *parts):
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# Commands


def test_words_arrive_as_they_were_given(transport):
    words = ["a b", "$HOME", "it's", '"', "*", "; exit 3", "`id`", "\\", "", "-n", "two\nlines", "ä"]
    done = transport.run(["printf", "<%s>", *words], timeout_s=20)
    assert done.code == 0
    assert done.out == "".join(f"<{word}>" for word in words)


def test_exit_code_output_and_errors_come_apart(transport):
    done = transport.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=20)
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n")


def test_a_command_killed_by_a_signal_is_not_a_broken_connection(transport):
    assert transport.run(["sh", "-c", "kill -9 $$"], timeout_s=20).code == 128 + 9


def test_a_command_finds_nothing_on_its_input(transport):
    assert transport.run(["cat"], timeout_s=20).out == ""


def test_messages_are_in_english(transport):
    assert transport.run(["sh", "-c", "echo $LC_ALL"], timeout_s=20).out == "C\n"


def test_what_a_login_script_prints_is_not_taken_for_output(ssh_board, transport):
    shell = ssh_board.folder / ".bashrc"  # bash reads it even for a single command over ssh
    shell.write_text("echo Welcome\n")
    assert transport.run(["echo", "out"], timeout_s=20).out == "out\n"
    shell.unlink()


def test_a_command_that_takes_too_long_is_given_up(transport):
    with pytest.raises(DeviceError) as caught:
        transport.run(["sleep", "3"], timeout_s=0.5)
    check_one_line(caught, transport.where, "sleep", "0.5 s")


# Copies


@pytest.mark.parametrize("size_bytes", [0, 1, 300_000])
def test_a_file_arrives_whole_and_alone(transport, tmp_path, size_bytes):
    local, folder = tmp_path / "local", tmp_path / "it's a folder"
    folder.mkdir()
    local.write_bytes(os.urandom(size_bytes))
    transport.push(local, f"{folder}/$remote file", timeout_s=20)
    assert [path.name for path in folder.iterdir()] == ["$remote file"]
    assert (folder / "$remote file").read_bytes() == local.read_bytes()


def test_a_copy_that_breaks_off_leaves_the_old_file(tmp_path):
    remote = tmp_path / "remote"
    remote.write_text("old")
    words = ["sh", "-c", RECEIVE, str(remote), "1000"]  # and only 4 of them come
    assert subprocess.run(words, input=b"half").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["remote"]
    assert remote.read_text() == "old"


def test_a_folder_that_is_not_there_is_named(transport, tmp_path):
    (tmp_path / "local").write_text("x")
    with pytest.raises(DeviceError) as caught:
        transport.push(tmp_path / "local", f"{tmp_path}/gone/remote", timeout_s=20)
    check_one_line(caught, transport.where, f"{tmp_path}/gone/remote")


def test_a_local_file_that_is_not_there_is_named(transport, tmp_path):
    with pytest.raises(DeviceError) as caught:
        transport.push(tmp_path / "gone", f"{tmp_path}/remote", timeout_s=20)
    check_one_line(caught, f"{tmp_path}/gone", "No such file")


def test_a_full_board_is_told_and_keeps_nothing(transport, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted without root")
    try:
        (tmp_path / "local").write_bytes(bytes(200_000))
        with pytest.raises(DeviceError) as caught:
            transport.push(tmp_path / "local", f"{small}/remote", timeout_s=20)
        check_one_line(caught, transport.where, "no room for 'local'", "free some storage")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


# Connections


def test_calls_share_one_connection_which_ends_with_the_last(ssh_board):
    log = ssh_board.folder / "log"
    before = log.read_text().count("Accepted publickey")
    with connected(ssh_board.host, ssh_board.port) as transport:
        for _ in range(3):
            assert transport.run(["true"], timeout_s=20).code == 0
    assert log.read_text().count("Accepted publickey") == before + 1
    assert not transport.shared.parent.exists()


def test_a_lost_connection_is_made_anew(ssh_board, tmp_path):
    transport = SshTransport(ssh_board.host, ssh_board.port, shared=tmp_path / "gone")
    assert transport.run(["echo", "there"], timeout_s=20).out == "there\n"


def test_a_port_nobody_listens_on_is_told(ssh_board):
    with pytest.raises(DeviceError) as caught:
        connect(ssh_board, port=1)
    check_one_line(caught, f"{ssh_board.host}:1", "refuses the connection", "ssh server")


def test_an_unknown_host_key_is_told(ssh_board):
    (ssh_board.folder / "known_hosts").write_text("")
    with pytest.raises(DeviceError) as caught:
        connect(ssh_board)
    check_one_line(caught, "host key is not known", f"ssh -p {ssh_board.port} {ssh_board.host}")


def test_a_changed_host_key_is_told(ssh_board):
    ssh_board.know_host("other_key")
    with pytest.raises(DeviceError) as caught:
        connect(ssh_board)
    check_one_line(caught, "host key has changed", "ssh-keygen -R")


def test_a_key_the_board_does_not_take_is_told(ssh_board):
    ssh_board.admit_user("other_key")
    with pytest.raises(DeviceError) as caught:
        connect(ssh_board)
    check_one_line(caught, "permission denied", f"ssh-copy-id -p {ssh_board.port} {ssh_board.host}")


def test_a_failure_of_a_single_call_is_told_in_the_same_way(ssh_board):
    with pytest.raises(DeviceError) as caught:
        SshTransport(ssh_board.host, 1).run(["true"], timeout_s=20)
    check_one_line(caught, f"{ssh_board.host}:1", "refuses the connection")


def test_a_server_that_says_nothing_is_given_up(ssh_board, monkeypatch):
    monkeypatch.setattr("edgecompress.devices.ssh_transport.CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DeviceError) as caught:
        connect(ssh_board, port=silent.getsockname()[1])
    check_one_line(caught, "does not answer")


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "-v", "a@-v", "-v@a", "a b", "", "a@"])
def test_a_host_that_ssh_would_misread_is_refused(host):
    with pytest.raises(ConfigError, match="not an address"):
        SshTransport(host)


def test_without_the_ssh_program_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError) as caught, connected("a@b"):
        pass
    check_one_line(caught, "openssh-client")
    with pytest.raises(DeviceError) as caught:
        SshTransport("a@b").run(["true"], timeout_s=20)
    check_one_line(caught, "openssh-client")
