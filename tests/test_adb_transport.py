"""Commands and files over the real adb, to a phone made of a directory."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phone.fixtures import adb, adb_server, needs_adb, phone, second_phone

from edgecompress.devices.adb_transport import AdbTransport, Attached, choose, list_attached, list_serials
from edgecompress.errors import DeviceError

__all__ = ["adb", "adb_server", "phone", "second_phone"]
WAIT_S = 10.0
NASTY = [
    "two words",
    "it's",
    'say "hi"',
    "a;touch gone",
    "$(touch gone)",
    "`touch gone`",
    "*",
    "",
    "a\\b",
    "~",
    "-n",
    "é",
]
PIXEL, OTHER = Attached("A1", "device", "Pixel_4", "flame"), Attached("B2", "device", "Pixel_6", "oriole")


@pytest.fixture
def transport(phone):
    return AdbTransport("adb", phone.serial)


@needs_adb
def test_output_errors_and_exit_code_come_apart(transport):
    done = transport.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=WAIT_S)
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n")


@needs_adb
def test_output_without_a_last_line_end_is_kept(transport):
    assert transport.run(["printf", "no end"], timeout_s=WAIT_S).out == "no end"


@needs_adb
def test_an_old_phone_gives_its_exit_code_too(phone, transport, adb):
    phone.daemon.switches.features = ()
    adb.call("disconnect", phone.serial)
    adb.call("connect", phone.serial)
    assert "shell_v2" not in adb.call("-s", phone.serial, "features")
    done = transport.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=WAIT_S)
    assert (done.code, done.out, done.err) == (3, "out\nerr\n", "")
    assert transport.run(["cat"], timeout_s=WAIT_S).code == 0  # nothing to read, and it does not wait for it


@needs_adb
def test_words_arrive_as_they_are_and_nothing_in_them_is_run(phone, transport):
    done = transport.run(["printf", "%s\n", *NASTY], timeout_s=WAIT_S)
    assert done.out.split("\n")[:-1] == NASTY
    assert not list(phone.root.rglob("gone"))


@needs_adb
def test_a_command_that_does_not_exist_is_an_exit_code(transport):
    assert transport.run(["no-such-program"], timeout_s=WAIT_S).code == 127


@needs_adb
def test_a_command_that_takes_too_long_is_an_error(transport):
    started_s = time.monotonic()
    with pytest.raises(DeviceError, match=r"adb shell` took over 0.3 s"):
        transport.run(["sleep", "3"], timeout_s=0.3)
    assert time.monotonic() - started_s < 2


@needs_adb
@pytest.mark.parametrize("size_bytes", [0, 1, 300_000])
def test_a_pushed_file_is_the_same_there(phone, transport, tmp_path, size_bytes):
    local = tmp_path / '$(touch gone); it\'s "mine".tflite'
    local.write_bytes(bytes(range(256)) * (size_bytes // 256) + b"x" * (size_bytes % 256))
    transport.push(local, "/data/local/tmp/with space;$(touch gone)", timeout_s=WAIT_S)
    assert phone.pushed() == {"with space;$(touch gone)"}
    assert (phone.tmp / "with space;$(touch gone)").read_bytes() == local.read_bytes()
    assert not list(phone.root.rglob("gone"))


@needs_adb
def test_a_file_is_replaced_whole(phone, transport, tmp_path):
    for text in ("first", "second"):
        (tmp_path / "file").write_text(text)
        transport.push(tmp_path / "file", "/data/local/tmp/file", timeout_s=WAIT_S)
    assert (phone.tmp / "file").read_text() == "second"


@needs_adb
def test_a_folder_that_is_not_there_is_an_error(phone, transport, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        DeviceError, match=r"'file' could not be copied: .*No such file or directory; is it read-only"
    ):
        transport.push(tmp_path / "file", "/data/nowhere/file", timeout_s=WAIT_S)
    assert not phone.pushed()


@needs_adb
def test_attached_phones_are_listed_with_their_names(adb, phone, second_phone):
    listed = {one.serial: one for one in list_attached("adb")}
    assert listed.keys() == {phone.serial, second_phone.serial} == set(list_serials("adb"))
    assert listed[phone.serial] == Attached(phone.serial, "device", "Pixel_4", "flame")


@needs_adb
def test_nothing_attached_is_an_empty_list(adb):
    assert list_attached("adb") == ()


def test_a_missing_adb_says_how_to_get_it(tmp_path):
    with pytest.raises(DeviceError, match=r"no such program; install adb .* --adb"):
        list_attached(str(tmp_path / "adb"))


def test_no_device_says_what_to_do():
    with pytest.raises(DeviceError, match="no device is attached; connect one"):
        choose([])


def test_the_only_device_is_taken():
    assert choose([PIXEL]) == PIXEL
    assert choose([PIXEL, Attached("C3", "offline")]) == PIXEL


def test_several_devices_are_told_apart_by_serial_or_codename():
    assert choose([PIXEL, OTHER], serial="B2") == OTHER
    assert choose([PIXEL, OTHER], match=("flame", "coral")) == PIXEL
    with pytest.raises(DeviceError, match=r"--serial: A1 \(Pixel_4 flame\), B2 \(Pixel_6 oriole\)"):
        choose([PIXEL, OTHER])


def test_another_phone_than_the_one_asked_for_is_refused():
    with pytest.raises(DeviceError, match=r"no device with 'flame' is attached; attached: B2"):
        choose([OTHER], match=("flame",))
    with pytest.raises(DeviceError, match=r"no device with serial 'Z9' is attached; attached: A1"):
        choose([PIXEL], serial="Z9")


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("unauthorized", "allow USB debugging"),
        ("authorizing", "allow USB debugging"),
        ("connecting", "try again"),
        ("offline", "replug"),
        ("no permissions", "plugdev"),
        ("recovery", "start Android"),
    ],
)
def test_a_device_that_is_not_ready_says_what_to_do(state, advice):
    for asked in ({}, {"serial": "C3"}, {"match": ("flame",)}):
        with pytest.raises(DeviceError, match=f"C3: is {state}; .*{advice}"):
            choose([Attached("C3", state)], **asked)


@given(st.text(string.ascii_letters, min_size=1), st.sampled_from(["device", "offline"]))
def test_a_device_is_shown_with_its_serial(serial, state):
    assert str(Attached(serial, state)).startswith(serial)
