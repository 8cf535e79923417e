"""Fixtures of the tests that talk to a phone; import the ones you use."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from phone.phone import AdbServer, Phone, private_environment

needs_adb = pytest.mark.skipif(
    shutil.which("adb") is None, reason="adb is not on PATH (Debian: apt-get install adb)"
)


@pytest.fixture(scope="session")
def adb_server(tmp_path_factory) -> Iterator[AdbServer]:
    """One adb server for all tests of this process."""
    server = AdbServer(private_environment(tmp_path_factory.mktemp("home")))
    server.call("start-server")
    yield server
    server.call("kill-server")


@pytest.fixture
def adb(adb_server, monkeypatch) -> Iterator[AdbServer]:
    """The server, with the environment that leads every adb to it; all devices are forgotten afterwards."""
    for name, value in adb_server.environment.items():
        monkeypatch.setenv(name, value)
    yield adb_server
    adb_server.call("disconnect")


@pytest.fixture
def phone(adb, tmp_path) -> Iterator[Phone]:
    """A phone that is attached and ready."""
    yield from attached(adb, tmp_path / "phone")


@pytest.fixture
def second_phone(adb, tmp_path) -> Iterator[Phone]:
    """Another one."""
    yield from attached(adb, tmp_path / "second")


def attached(adb: AdbServer, root: Path) -> Iterator[Phone]:
    phone = Phone(root)
    answer = adb.call("connect", phone.serial)
    assert "connected to" in answer, answer
    yield phone
    adb.call("disconnect", phone.serial)
    phone.daemon.close()
