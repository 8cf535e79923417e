"""`edgecompress bench` down to phones, through the real adb."""

import json
import subprocess
import sys

import pytest
from bench_files import SHORT, onnx, tflite
from phone.fixtures import adb, adb_server, needs_adb, phone, second_phone
from phone.phone import BENCHMARK_MODEL
from typer.testing import CliRunner

from edgecompress.cli.main import app
from edgecompress.core.measurement import BenchResult
from edgecompress.core.presets import PRESETS
from edgecompress.devices.phone_files import FOLDER

__all__ = ["adb", "adb_server", "phone", "second_phone"]
pytestmark = needs_adb
BINARY = ("--benchmark-binary", str(BENCHMARK_MODEL))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Gives the command two files and nothing else to find."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setitem(PRESETS, "quick", SHORT)
    tflite(folder / "a.tflite")
    tflite(folder / "b.tflite", "small_int8.tflite")
    return folder


def call(*args):
    return CliRunner().invoke(app, ["bench", *map(str, args), "--preset", "quick"])


def measured(*args):
    """Returns the record `--json` prints."""
    result = call(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return BenchResult.model_validate_json(result.stdout)


def check_one_line_error(result, *parts):
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("edgecompress: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_a_phone_is_measured_by_the_command_itself(phone):
    command = [sys.executable, "-m", "edgecompress", "bench", "a.tflite", "b.tflite", "--device", "adb"]
    done = subprocess.run([*command, *BINARY, "--preset", "quick", "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (bench,) = BenchResult.model_validate_json(done.stdout).benches
    assert bench.device == "adb"
    for one in bench.measurements:
        assert (one.conditions.device, one.conditions.runtime) == ("Pixel 4 (flame)", "benchmark_model")
        assert (one.conditions.cores, one.conditions.provenance) == ((7,), "measured")
        assert one.validity.valid
        assert one.summary.median_ms == 12.205
    assert [(one.baseline, one.other) for one in bench.comparisons] == [("a.tflite", "b.tflite")]


def test_files_take_turns_on_the_phone(phone):
    result = measured("a.tflite", "b.tflite", "--device", "adb", *BINARY)
    hashes = [one.file.sha256 for one in result.benches[0].measurements]
    graphs = [hashes.index(words.split("--graph=")[1].split(".")[0][-64:]) for words in phone.noted("runs")]
    loaded, rounds = graphs[:2], graphs[2:]
    assert loaded == [0, 1]
    assert len(rounds) == 2 * SHORT.process_rounds
    assert all(sorted(rounds[i : i + 2]) == [0, 1] for i in range(0, len(rounds), 2))


def test_the_report_of_a_phone_names_it(phone):
    result = call("a.tflite", "b.tflite", "--device", "pixel4", *BINARY)
    assert result.exit_code == 0, result.stderr
    for part in ("pixel4, Pixel 4 (flame)", "12.2", "no difference seen", "1 thread on core 7, governor"):
        assert part in result.stdout


@pytest.mark.parametrize("asked", ["each", "all"])
def test_two_phones_are_measured_at_the_same_time_each_under_its_serial(phone, second_phone, asked):
    second_phone.play("plain")
    both = [phone.serial, second_phone.serial]
    words = [word for serial in (both if asked == "each" else ["all"]) for word in ("--serial", serial)]
    result = measured("a.tflite", "b.tflite", "--device", "adb", *words, *BINARY)
    by_serial = {bench.device: bench for bench in result.benches}
    assert sorted(by_serial) == sorted(both)
    medians = [by_serial[serial].measurements[0].summary.median_ms for serial in both]
    assert medians == [12.205, 1701.35]
    for one in (phone, second_phone):
        assert len(one.noted("runs")) == 2 + 2 * SHORT.process_rounds


def test_two_phones_have_a_part_each_in_the_report(phone, second_phone):
    text = call("a.tflite", "b.tflite", "--device", "adb", "--serial", "all", *BINARY).stdout
    for serial in (phone.serial, second_phone.serial):
        assert text.count(f"{serial}, Pixel 4 (flame): ") == 1


def test_a_phone_that_fails_is_named_and_nothing_is_written(phone, second_phone, in_a_folder):
    second_phone.play("crash")
    result = call("a.tflite", "--device", "adb", "--serial", "all", *BINARY, "-o", "out.json")
    check_one_line_error(result, "crashed", second_phone.serial)
    assert not (in_a_folder / "out.json").exists()


def test_cleaning_leaves_nothing_on_the_phones(phone, second_phone):
    folders = [one.root / FOLDER.lstrip("/") for one in (phone, second_phone)]
    measured("a.tflite", "--device", "adb", "--serial", "all", *BINARY)
    assert all(folder.is_dir() for folder in folders)
    measured("a.tflite", "--device", "adb", "--serial", "all", *BINARY, "--clean")
    assert not any(folder.exists() for folder in folders)


def test_a_throttling_phone_is_measured_and_not_believed(phone):
    phone.play("throttle")
    words = ("a.tflite", "b.tflite", "--device", "adb", *BINARY)
    for one in measured(*words).benches[0].measurements:
        assert not one.validity.valid
        assert any("thermal status rose from" in reason for reason in one.validity.reasons)
    phone.warm()
    assert "not valid; " in call(*words).stdout


OWN = """
title = "my phone"
drivers = ["adb"]
serial = "{serial}"
benchmark_binary = "{binary}"
threads = 2
"""


def test_a_device_file_of_ones_own_is_all_it_takes(phone, second_phone, in_a_folder):
    (in_a_folder / "devices").mkdir()
    file = in_a_folder / "devices" / "mine.toml"
    file.write_text(OWN.format(serial=second_phone.serial, binary=BENCHMARK_MODEL))
    for device in ("mine", "devices/mine.toml"):
        (bench,) = measured("a.tflite", "--device", device).benches
        assert bench.device == "mine"
        assert bench.measurements[0].conditions.threads == 2
        assert len(bench.measurements[0].conditions.cores) == 2
    assert second_phone.pushed()
    assert not phone.pushed()


def test_a_profile_shows_where_the_time_goes(phone):
    (one,) = measured("a.tflite", "--device", "adb", *BINARY, "--profile").benches[0].measurements
    assert any(operator.delegated for operator in one.operators)
    text = call("a.tflite", "--device", "adb", *BINARY, "--profile").stdout
    assert "a.tflite: where the time goes" in text
    assert "Convolution (NHWC, F32) GEMM" in text


def test_an_earlier_result_of_the_same_phone_is_compared(phone, in_a_folder):
    words = ("a.tflite", "--device", "adb", *BINARY)
    measured(*words, "-o", "before.json")
    (compared,) = measured(*words, "--against", "before.json").earlier
    assert (compared.verdict, compared.paired) == ("no difference", False)
    assert json.loads((in_a_folder / "before.json").read_text())["written"] == "before.json"


def test_another_build_of_the_runner_is_not_compared(phone, in_a_folder):
    measured("a.tflite", "--device", "adb", *BINARY, "-o", "before.json")
    newer = in_a_folder / "benchmark_model"
    newer.write_text(BENCHMARK_MODEL.read_text() + "\n# newer\n")
    result = call("a.tflite", "--device", "adb", "--benchmark-binary", newer, "--against", "before.json")
    check_one_line_error(result, "runtime version is 'sha256:", "measure both alike")


def test_the_emulator_is_not_passed_off_as_a_phone(phone):
    with (phone.root / "etc/properties").open("a") as file:
        file.write("[ro.hardware]: [ranchu]\n")
    assert (
        "emulated: never quote these times as measured on a real device"
        in call("a.tflite", "--device", "adb", *BINARY).stdout
    )


@pytest.mark.parametrize("serial", [(), ("--serial", "all")])
def test_no_phone_is_one_line(adb, serial):
    check_one_line_error(call("a.tflite", "--device", "adb", *serial), "no device is attached")


def test_onnx_files_are_not_for_phones(in_a_folder):
    onnx(in_a_folder / "c.onnx")
    check_one_line_error(call("c.onnx", "--device", "adb"), "c.onnx: this device runs .tflite files")


def test_a_phone_without_the_program_says_where_to_get_it(phone):
    check_one_line_error(call("a.tflite", "--device", "adb"), "--benchmark-binary", phone.serial)
