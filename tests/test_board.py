"""Measuring on a board: this machine behind its own sshd, with the real runner."""

import contextlib
import itertools
import time
from pathlib import Path

import pytest
from built_runner import PARTLY, SMALL, SMALL_INT8, built, built_cache
from phone.fixtures import adb, adb_server, needs_adb, phone
from ssh_server import needs_sshd, server, ssh_board

from edgecompress import devices
from edgecompress.core.device import Device
from edgecompress.core.plugins import discover
from edgecompress.devices.board import DRIVER
from edgecompress.devices.board_runner import command
from edgecompress.devices.contract import BurstSize, Driver, Options
from edgecompress.devices.native.build import wanted_version
from edgecompress.errors import ConfigError, DeviceError, ExportError

__all__ = ["adb", "adb_server", "built", "built_cache", "phone", "server", "ssh_board"]

QUICK = Options(timeout_s=60, settle_s=0.2)
SHORT = BurstSize(min_runs=20, min_seconds=0.0, warmup_seconds=0.0)


@pytest.fixture(scope="module")
def device(server, built_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(built_cache))
        yield Device(name="mine", title="A board", drivers=("board",), host=server.host, port=server.port)


@pytest.fixture(scope="module")
def session(device):
    with DRIVER.open(device, QUICK) as session:
        session.load(SMALL)
        yield session


def check_one_line(caught, *parts):
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_the_driver_is_discovered():
    assert discover(devices, Driver)["board"] is DRIVER
    assert DRIVER.suffixes == (".tflite",)


@needs_sshd
def test_files_are_measured_in_turns(session):
    loaded = [session.load(file) for file in (SMALL, SMALL_INT8)]
    bursts = [session.burst(file, SHORT) for file in (SMALL, SMALL_INT8, SMALL)]
    assert all(one.load_ms > 0 and one.first_ms > 0 and one.notes == () for one in loaded)
    assert all(one.runs == len(one.samples_ms) == 20 for one in bursts)
    assert all(one.min_ms <= one.median_ms <= one.max_ms for one in bursts)
    assert all(0 <= one.interference <= 1 for one in bursts)
    assert all(before.started_s < after.started_s for before, after in itertools.pairwise(bursts))


@needs_sshd
def test_a_burst_lasts_as_long_as_asked(session):
    burst = session.burst(SMALL, BurstSize(min_runs=1, min_seconds=0.1, warmup_seconds=0.05))
    assert sum(burst.samples_ms[:-1]) < 100 <= sum(burst.samples_ms) + 1e-6 * burst.runs


@needs_sshd
def test_the_conditions_tell_where_it_was_measured(session):
    conditions, state, notes = session.conditions, session.environment(), session.settle()
    assert conditions.runtime == "litert-runner"
    assert conditions.runtime_version == wanted_version()
    assert conditions.build.startswith("Linux ")
    assert conditions.provenance == "measured"
    assert (conditions.threads, len(conditions.cores)) == (1, 1)
    assert state.load is not None
    assert notes == () or notes[0].startswith("still ")
    assert session.fresh_process
    assert session.profile(SMALL) == ()


@needs_sshd
def test_the_runner_is_started_on_the_cores_of_the_conditions(session):
    cores = session.conditions.cores
    words = command("runner", "graph", threads=1, cores=cores, size=SHORT, timeout_s=1)
    pinned = words[: words.index("runner")]
    status = session.transport.run([*pinned, "cat", "/proc/self/status"], timeout_s=20).out
    assert f"Cpus_allowed_list:\t{cores[0]}\n" in status


@needs_sshd
def test_what_is_asked_for_wins(device):
    asked = Options(cores=(), threads=2)
    with DRIVER.open(device, asked) as session:
        session.load(SMALL)
        burst = session.burst(SMALL, SHORT)
    assert (session.conditions.cores, session.conditions.threads) == ((), 2)
    assert session.conditions.governor is None
    assert burst.interference is None  # threads that wait for each other are not disturbed by others


@needs_sshd
def test_the_runner_is_pushed_once_and_files_do_not_stay(device, ssh_board):
    def kept():
        return {path: path.stat().st_mtime_ns for path in ssh_board.home.rglob("*") if path.is_file()}

    with DRIVER.open(device, QUICK):
        before = kept()
        with DRIVER.open(device, QUICK) as session:
            session.load(PARTLY)
            during = kept()
    assert {path.name for path in before if path.suffix != ".tflite"} == {"litert_runner", "libLiteRt.so"}
    assert len(during.items() - before.items()) == 1
    assert kept() == before


@needs_sshd
def test_operators_outside_the_delegate_are_noted(session):
    assert "XNNPACK" in session.load(PARTLY).notes[0]


# Faults


@needs_sshd
@pytest.mark.parametrize("content", [b"not a model", None], ids=["broken", "gone"])
def test_a_bad_file_is_the_files_fault(session, tmp_path, content):
    file = tmp_path / "broken.tflite"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ExportError) as caught:
        session.load(file)
    check_one_line(caught, "broken.tflite", "cannot be")


def programs_with(word):
    """Returns the command lines of running programs that contain a word."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(process.read_text().replace("\0", " "))
    return [line for line in lines if word in line]


@needs_sshd
def test_a_burst_that_takes_too_long_ends_on_the_board_too(device):
    with DRIVER.open(device, Options(timeout_s=1.5)) as session:
        session.load(SMALL)
        with pytest.raises(DeviceError) as caught:
            session.burst(SMALL, BurstSize(min_runs=1, min_seconds=30, warmup_seconds=0))
        until_s = time.monotonic() + 5
        while programs_with(f"--graph={session.folder}") and time.monotonic() < until_s:
            time.sleep(0.05)
        assert programs_with(f"--graph={session.folder}") == []
    check_one_line(caught, "took ")


@needs_sshd
def test_a_core_the_board_does_not_have_is_told(device):
    with pytest.raises(DeviceError) as caught, DRIVER.open(device, Options(cores=(999,))):
        pass
    check_one_line(caught, "has no cores [999]")


@needs_sshd
def test_a_runner_that_was_not_prepared_is_asked_for(device, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DeviceError) as caught, DRIVER.open(device, QUICK):
        pass
    check_one_line(caught, "edgecompress device prepare mine")


def test_a_board_without_a_host_says_what_to_write():
    device = Device(name="rpi5", title="A board", drivers=("board",))
    with pytest.raises(DeviceError) as caught, DRIVER.open(device, QUICK):
        pass
    check_one_line(caught, "rpi5", 'host = "user@address"')


@pytest.mark.parametrize("host", ["-oProxyCommand=x", ""])
def test_a_host_that_is_none_is_refused(host):
    device = Device(name="mine", title="A board", drivers=("board",), host=host)
    with pytest.raises(ConfigError), DRIVER.open(device, QUICK):
        pass


# Boards over adb


@needs_adb
def test_a_board_over_adb_is_measured_too(phone, built_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(built_cache))
    device = Device(name="mine", title="A board", drivers=("board",), transport="adb", serial=phone.serial)
    with DRIVER.open(device, QUICK) as session:
        session.load(SMALL)
        burst = session.burst(SMALL, SHORT)
    assert burst.runs == 20
    assert {name.split("/")[-1] for name in phone.pushed()} == {"litert_runner", "libLiteRt.so"}
