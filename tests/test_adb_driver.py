"""Measuring on a phone over the real adb: what is pushed, what is run, what comes back."""

from __future__ import annotations

import hashlib

import pytest
from phone.fixtures import adb, adb_server, needs_adb, phone, second_phone
from phone.phone import BATTERY, BENCHMARK_MODEL, PROPERTIES

from edgecompress.core.device import Device
from edgecompress.devices.adb import DRIVER, clean, serials
from edgecompress.devices.adb_transport import AdbTransport
from edgecompress.devices.contract import BurstSize, Options
from edgecompress.devices.phone_files import FOLDER
from edgecompress.errors import DeviceError

__all__ = ["adb", "adb_server", "phone", "second_phone"]
pytestmark = needs_adb
ANY = Device(name="any", title="Any phone", drivers=("adb",))
PIXEL_4 = ANY.model_copy(update={"name": "pixel-4", "match": ("flame",)})
OPTIONS = Options(benchmark_binary=BENCHMARK_MODEL, timeout_s=10.0, settle_s=0.3)
SIZE = BurstSize(min_runs=30, min_seconds=1.0, warmup_seconds=0.5)


def options(**changes) -> Options:
    return Options(**{**vars(OPTIONS), **changes})


def sha256(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def model(tmp_path):
    file = tmp_path / '$(touch gone); it\'s "my" model.tflite'
    file.write_bytes(b"TFL3" * 1000)
    return file


def test_a_session_tells_what_it_measures_on(phone):
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        conditions = session.conditions
    assert conditions.device == "Pixel 4 (flame)"
    assert conditions.build == PROPERTIES["ro.build.fingerprint"]
    assert (conditions.runtime, conditions.provenance) == ("benchmark_model", "measured")
    assert conditions.runtime_version == f"sha256:{sha256(BENCHMARK_MODEL)[:12]}"
    assert (conditions.threads, conditions.cores, conditions.governor) == (1, (7,), "schedutil")
    assert session.fresh_process


def test_an_emulator_is_not_taken_for_a_phone(phone):
    with (phone.root / "etc/properties").open("a") as file:
        file.write("[ro.hardware]: [ranchu]\n")
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        assert session.conditions.provenance == "emulated"


def test_another_phone_than_the_file_describes_is_told(phone, model):
    other = ANY.model_copy(update={"match": ("oriole",), "serial": phone.serial, "title": "Pixel 6"})
    with DRIVER.open(other, OPTIONS) as session:
        assert session.load(model).notes == ("Pixel 4 (flame) is not the Pixel 6 of the device file",)


def test_files_are_pushed_once_under_their_hash(phone, model):
    wanted = {
        f"edgecompress/{sha256(model)}.tflite",
        f"edgecompress/benchmark_model-{sha256(BENCHMARK_MODEL)}",
    }
    for _ in range(2):
        with DRIVER.open(PIXEL_4, OPTIONS) as session:
            session.load(model)
        assert phone.pushed() == wanted
        phone.daemon.switches.free_bytes = 0  # so that pushing again would fail
    assert not list(phone.root.rglob("gone"))


def test_a_file_of_the_wrong_size_is_pushed_again(phone, model):
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        session.load(model)
        there = phone.tmp / f"edgecompress/{sha256(model)}.tflite"
        there.write_bytes(b"cut off")
        session.load(model)
    assert there.read_bytes() == model.read_bytes()


def test_loading_runs_a_file_once(phone, model):
    phone.play("partly_delegated")
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        loaded = session.load(model)
    assert (loaded.load_ms, loaded.first_ms) == (8.8, 20.87)
    assert loaded.notes == ("XNNPack runs 118 of 131 operators, in 9 parts",)
    (words,) = phone.noted("runs")
    assert "--num_runs=1 --min_secs=0 --warmup_runs=1 --warmup_min_secs=0 " in words


def test_a_burst_is_pinned_and_as_long_as_asked(phone, model):
    with DRIVER.open(PIXEL_4, options(threads=2)) as session:
        session.load(model)
        burst = session.burst(model, SIZE)
    assert (burst.runs, burst.samples_ms) == (82, ())
    assert (burst.median_ms, burst.mean_ms, burst.p95_ms) == (12.205, 12.3816, 12.947)
    assert burst.started_s > 0
    words = phone.noted("runs")[-1].split()
    assert {
        "--num_threads=2",
        "--num_runs=30",
        "--min_secs=1",
        "--warmup_min_secs=0.5",
        "--use_xnnpack=true",
    } <= {*words}
    assert set(phone.noted("masks")) == {"c0"}


def test_an_old_build_reports_only_a_mean(phone, model):
    phone.play("plain")
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        session.load(model)
        burst = session.burst(model, SIZE)
    assert burst.median_ms is None
    assert burst.center_ms == burst.mean_ms == 1701.35


def test_an_old_phone_is_measured_all_the_same(phone, model, adb):
    phone.daemon.switches.features = ()
    adb.call("disconnect", phone.serial)
    adb.call("connect", phone.serial)
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        session.load(model)
        assert session.burst(model, SIZE).median_ms == 12.205


@pytest.mark.parametrize(("cores", "mask"), [((0, 1), "3"), ((), None)])
def test_asked_for_cores_win(phone, model, cores, mask):
    with DRIVER.open(PIXEL_4, options(cores=cores)) as session:
        session.load(model)
        assert session.conditions.cores == cores
    assert set(phone.noted("masks")) == ({mask} if mask else set())


def test_a_phone_that_cannot_pin_is_measured_unless_cores_were_asked_for(phone, model):
    (phone.root / "system/bin/taskset").write_text(
        "#!/bin/sh\necho 'taskset: Invalid argument' >&2\nexit 1\n"
    )
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        assert session.conditions.cores == ()
        assert session.load(model).notes[0] == "not pinned to cores: taskset: Invalid argument"
    with (
        pytest.raises(DeviceError, match=r"cannot pin to cores \[7\].*omit --cores"),
        DRIVER.open(PIXEL_4, options(cores=(7,))),
    ):
        pass


def test_the_state_of_the_phone_is_told(phone):
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        now = session.environment()
    assert now.temperatures_c == {"VIRTUAL-SKIN": 33.6, "CPU7": 38.2, "battery": 28.5}
    assert (now.thermal_status, now.clock_mhz, now.load) == (0, 2841.6, 1.25)
    assert (now.charging, now.battery_percent) == (True, 87)


def test_a_phone_that_tells_nothing_is_not_an_error(phone):
    for name in ("dumpsys-thermalservice", "dumpsys-battery"):
        (phone.root / "etc" / name).unlink()
    (phone.root / "sys/devices/system/cpu/cpu7/cpufreq/scaling_cur_freq").unlink()
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        now = session.environment()
        assert (now.temperatures_c, now.thermal_status, now.clock_mhz, now.charging) == ({}, None, None, None)
        assert session.settle() == ("the phone does not tell whether it is warm",)


def test_kernel_sensors_stand_in_for_the_thermal_service(phone):
    (phone.root / "etc/dumpsys-thermalservice").write_text("Thermal Status: 0\n")
    (phone.root / "etc/dumpsys-battery").write_text(BATTERY.format(usb="false", tenths_c=301))
    zone = phone.root / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("skin-therm\n")
    (zone / "temp").write_text("41500\n")
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        assert session.environment().temperatures_c == {"skin-therm": 41.5, "battery": 30.1}
        assert session.settle() == ("still at 41.5 °C (skin-therm) after 0.3 s",)


def test_a_cool_phone_does_not_wait(phone):
    with DRIVER.open(PIXEL_4, options(settle_s=60.0)) as session:
        assert session.settle() == ()


def test_operators_are_timed_in_a_pass_of_their_own(phone, model):
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        session.load(model)
        operators = session.profile(model)
    assert [one.kind for one in operators if one.delegated] == [
        "Convolution (NHWC, F32) GEMM",
        "Fully Connected (NC, F32) GEMM",
    ]
    assert "--enable_op_profiling=true" in phone.noted("runs")[-1]


def test_the_program_need_not_be_given_twice(phone, model):
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        first = session.conditions
    with DRIVER.open(PIXEL_4, options(benchmark_binary=None)) as session:
        assert session.conditions == first
        assert session.load(model).load_ms is not None


def test_the_program_may_come_from_the_device_file(phone, model):
    device = PIXEL_4.model_copy(update={"benchmark_binary": str(BENCHMARK_MODEL)})
    with DRIVER.open(device, options(benchmark_binary=None)) as session:
        assert session.load(model).load_ms is not None


def test_one_of_two_phones_is_chosen_by_its_serial(phone, second_phone):
    assert set(serials()) == {phone.serial, second_phone.serial}
    of_a_file = ANY.model_copy(update={"serial": second_phone.serial})
    for device, asked in ((ANY, second_phone.serial), (of_a_file, None)):
        with DRIVER.open(device, options(serial=asked)):
            assert second_phone.pushed() and not phone.pushed()


def test_one_of_two_phones_is_chosen_by_its_codename(phone, second_phone, adb):
    second_phone.daemon.properties["ro.product.device"] = "oriole"
    adb.call("disconnect", second_phone.serial)
    adb.call("connect", second_phone.serial)
    with DRIVER.open(PIXEL_4, OPTIONS):
        assert phone.pushed() and not second_phone.pushed()


def test_cleaning_leaves_nothing_behind(phone, model):
    with DRIVER.open(PIXEL_4, OPTIONS) as session:
        session.load(model)
    clean(AdbTransport("adb", phone.serial), runner=False)
    (left,) = phone.pushed()
    assert "/benchmark_model-" in left
    clean(AdbTransport("adb", phone.serial), runner=True)
    assert not phone.pushed() and not (phone.root / FOLDER.lstrip("/")).exists()
