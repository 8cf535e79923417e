"""What goes wrong with phones and cables, each time as one line the user can act on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from phone.fixtures import adb, adb_server, needs_adb, phone, second_phone
from phone.phone import BENCHMARK_MODEL, Phone

from edgecompress.core.device import Device
from edgecompress.devices.adb import DRIVER
from edgecompress.devices.contract import BurstSize, Options
from edgecompress.errors import DeviceError, ExportError

__all__ = ["adb", "adb_server", "phone", "second_phone"]
pytestmark = needs_adb
ANY = Device(name="any", title="Any phone", drivers=("adb",))
OPTIONS = Options(benchmark_binary=BENCHMARK_MODEL, timeout_s=5.0, settle_s=0.2)
SIZE = BurstSize(min_runs=5, min_seconds=0.0, warmup_seconds=0.0)


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "net.tflite"
    file.write_bytes(b"TFL3" * 100_000)
    return file


def open_and_load(model, **changes):
    with DRIVER.open(ANY, Options(**{**vars(OPTIONS), **changes})) as session:
        session.load(model)


def is_one_line(error) -> bool:
    return "\n" not in str(error.value)


def eventually(found, *, within_s: float = 5.0) -> bool:
    until_s = time.monotonic() + within_s
    while not (ok := found()) and time.monotonic() < until_s:
        time.sleep(0.02)
    return ok


def test_no_phone(adb, model):
    with pytest.raises(DeviceError, match="no device is attached"):
        open_and_load(model)


def test_a_phone_nobody_has_allowed(adb, model, tmp_path):
    phone = Phone(tmp_path / "phone")
    phone.daemon.switches.authorised = False
    adb.call("connect", phone.serial)
    assert eventually(lambda: "unauthorized" in adb.call("devices"))
    with pytest.raises(
        DeviceError, match=f"{phone.serial}: is unauthorized; unlock it and allow USB debugging"
    ):
        open_and_load(model)
    adb.call("disconnect", phone.serial)
    phone.daemon.close()


def test_a_phone_that_has_gone_offline(phone, adb, model):
    phone.daemon.switches.answering = False
    phone.daemon.hang_up()
    assert eventually(lambda: "offline" in adb.call("devices"))
    with pytest.raises(DeviceError, match="is offline; unplug and replug it"):
        open_and_load(model)


def test_two_phones(phone, second_phone, model):
    with pytest.raises(DeviceError, match="2 devices are attached; choose with --serial") as error:
        open_and_load(model)
    assert phone.serial in str(error.value) and second_phone.serial in str(error.value)


def test_no_benchmark_program_anywhere(phone, model):
    with pytest.raises(
        DeviceError, match=r"developers\.google\.com/edge/litert.*--benchmark-binary"
    ) as error:
        open_and_load(model, benchmark_binary=None)
    assert is_one_line(error)


def test_a_benchmark_program_that_is_not_here(phone, model, tmp_path):
    with pytest.raises(DeviceError, match="there is no such file; get android_aarch64"):
        open_and_load(model, benchmark_binary=tmp_path / "nothing")


def test_a_benchmark_program_for_another_kind_of_phone(phone, model, tmp_path):
    (tmp_path / "foreign").write_text("#!/system/bin/linker64-of-another-abi\n")
    with pytest.raises(
        DeviceError, match=r"benchmark_model does not run here: .*; get android_aarch64"
    ) as error:
        open_and_load(model, benchmark_binary=tmp_path / "foreign")
    assert is_one_line(error)


@pytest.mark.parametrize(
    ("scenario", "kind", "said"),
    [
        (
            "failed",
            ExportError,
            r"net.tflite: benchmark_model cannot run it on .*: Node number 7 \(CONV_2D\)",
        ),
        ("not_a_model", ExportError, "The model is not a valid Flatbuffer buffer"),
        ("crash", ExportError, r"net.tflite: benchmark_model crashed with it on .* \(signal 11\)"),
        ("killed", DeviceError, "was killed with 'net.tflite'; close other apps"),
        ("unlinked", DeviceError, 'does not run here: .*"libOpenCL.so" not found'),
        ("silent", DeviceError, r"printed no timings \(exit code 0\): count=41"),
    ],
)
def test_a_run_that_fails(phone, model, scenario, kind, said):
    phone.play(scenario)
    with pytest.raises(kind, match=said) as error:
        open_and_load(model)
    assert is_one_line(error)


def test_a_run_that_hangs_is_ended_on_the_phone_too(phone, model):
    phone.play("hang")
    with pytest.raises(DeviceError, match=r"adb shell` took over 0.7 s"):
        open_and_load(model, timeout_s=0.7)
    (number,) = phone.noted("hanging")
    assert eventually(lambda: not _runs(number), within_s=2.0)  # by itself it takes five


def _runs(number: str) -> bool:
    try:
        return b"benchmark_model" in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_phone_that_throttles_says_so(phone, model):
    phone.play("throttle")
    with DRIVER.open(ANY, OPTIONS) as session:
        session.load(model)
        before = session.environment()
        medians = [session.burst(model, SIZE).center_ms for _ in range(3)]
        after = session.environment()
        assert (before.thermal_status, after.thermal_status) == (0, 3)
        assert medians == sorted(medians) and medians[-1] > 1.1 * medians[0]
        assert session.settle() == ("still at thermal status 3 after 0.2 s",)


def test_a_warm_phone_is_waited_for(phone):
    phone.warm(skin_c=43.0)
    cooling = threading.Timer(0.3, phone.warm)
    with DRIVER.open(ANY, Options(**{**vars(OPTIONS), "settle_s": 3.0})) as session:
        cooling.start()
        started_s = time.monotonic()
        assert session.settle() == ()
    assert 0.3 <= time.monotonic() - started_s < 3.0
    cooling.join()


def test_a_cable_pulled_in_the_middle_of_a_push(phone, model):
    with DRIVER.open(ANY, OPTIONS) as session:
        phone.daemon.switches.cut_push_after_bytes = 100_000
        with pytest.raises(
            DeviceError, match=f"{phone.serial}: 'net.tflite' could not be copied.*check the cable"
        ):
            session.load(model)
    assert not any(name.endswith(".tflite") for name in phone.pushed())


def test_what_a_broken_push_left_is_removed_next_time(phone, model, adb):
    test_a_cable_pulled_in_the_middle_of_a_push(phone, model)
    assert any(name.endswith(".part") for name in phone.pushed())
    phone.daemon.switches.cut_push_after_bytes = None
    phone.daemon.plug_in()
    adb.call("disconnect", phone.serial)
    adb.call("connect", phone.serial)
    open_and_load(model)
    assert not any(name.endswith(".part") for name in phone.pushed())


def test_a_cable_pulled_in_the_middle_of_a_run(phone, model):
    with DRIVER.open(ANY, OPTIONS) as session:
        session.load(model)
        phone.play("hang")
        phone.daemon.switches.cut_shell_after_s = 0.2
        started_s = time.monotonic()
        with pytest.raises(DeviceError, match=r"the connection broke during `sh`.*check the cable"):
            session.burst(model, SIZE)
        assert time.monotonic() - started_s < OPTIONS.timeout_s


def test_a_phone_without_room_keeps_nothing_of_the_file(phone, model):
    with DRIVER.open(ANY, OPTIONS) as session:
        phone.daemon.switches.free_bytes = 100_000
        with pytest.raises(DeviceError, match=f"{phone.serial}: no room for 'net.tflite'; free some storage"):
            session.load(model)
    assert all("benchmark_model" in name for name in phone.pushed())


def test_a_file_that_is_not_there(phone, tmp_path):
    with pytest.raises(ExportError, match="cannot be read: No such file"):
        open_and_load(tmp_path / "nothing.tflite")
