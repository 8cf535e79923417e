"""The two runtimes of this machine, on small files. Nothing here depends on how fast they are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from onnx_files import write_net
from tflite_files import write_chain

from edgecompress.core.device import Cluster, Device
from edgecompress.core.presets import Preset
from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.statistics import compare
from edgecompress.devices import local_litert, local_ort, this_machine
from edgecompress.devices.contract import BurstSize, Options
from edgecompress.devices.litert_graph import count_operators, operators_outside_delegate
from edgecompress.devices.protocol import measure
from edgecompress.errors import DeviceError, ExportError

FILES = Path(__file__).parent / "files"
LOCAL = Device(name="local", title="this machine", drivers=("local-ort", "local-litert"))
FEW = BurstSize(min_runs=5, min_seconds=0.0, warmup_seconds=0.0)
AT_ONCE = Options(settle_s=0.0)
BOTH = pytest.mark.parametrize("driver", [local_ort.DRIVER, local_litert.DRIVER], ids=lambda one: one.name)


@pytest.fixture(autouse=True)
def cores_are_as_before():
    before = os.sched_getaffinity(0)
    yield
    assert os.sched_getaffinity(0) == before


def good_file(driver, directory):
    """Returns a file the driver can run."""
    if driver is local_ort.DRIVER:
        return write_net(directory / "net.onnx")
    return shutil.copy(FILES / "small.tflite", directory / "net.tflite")


def opened(driver, **options):
    return driver.open(LOCAL, Options(settle_s=0.0, **options))


@BOTH
def test_a_burst_has_every_run(driver, tmp_path):
    file = good_file(driver, tmp_path)
    with opened(driver) as session:
        loaded = session.load(file)
        found = session.burst(file, BurstSize(min_runs=7, min_seconds=0.01, warmup_seconds=0.001))
    assert found.runs == len(found.samples_ms) >= 7
    assert sum(found.samples_ms) >= 10
    assert found.min_ms <= found.median_ms <= found.max_ms
    assert found.started_s > 0
    assert 0 <= found.interference <= 1
    assert loaded.load_ms > 0
    assert loaded.first_ms > 0


@BOTH
def test_conditions_say_what_ran_where(driver, tmp_path):
    with opened(driver) as session:
        found = session.conditions
        assert set(found.cores) == os.sched_getaffinity(0)
    assert found.threads == len(found.cores) == 1
    assert found.runtime in ("onnxruntime", "litert")
    assert found.runtime_version[0].isdigit()
    assert found.provenance == "measured"
    assert found.device


@BOTH
def test_cores_are_as_before_once_a_session_is_closed(driver, tmp_path):
    before = os.sched_getaffinity(0)
    with pytest.raises(ExportError), opened(driver) as session:
        session.load(tmp_path / "gone")
    assert os.sched_getaffinity(0) == before


@BOTH
def test_nothing_is_pinned_when_asked_not_to(driver):
    before = os.sched_getaffinity(0)
    with opened(driver, cores=()) as session:
        assert os.sched_getaffinity(0) == before
        assert session.conditions.cores == ()


@BOTH
def test_a_core_that_is_not_there_is_refused(driver):
    with pytest.raises(DeviceError, match="core 4096 may not be used; allowed are: "):
        opened(driver, cores=(4096,)).__enter__()


@BOTH
def test_more_threads_than_cores_are_refused(driver):
    with pytest.raises(DeviceError, match=r"4096 threads for .* cores; ask for fewer threads"):
        opened(driver, threads=4096).__enter__()


@BOTH
def test_interference_is_not_told_where_several_threads_run(driver, tmp_path):
    file = good_file(driver, tmp_path)
    with opened(driver, threads=2, cores=()) as session:
        session.load(file)
        assert session.burst(file, FEW).interference is None


def test_the_cores_of_the_device_file_are_preferred():
    core = min(os.sched_getaffinity(0))
    device = LOCAL.model_copy(update={"clusters": (Cluster(name="big", core="any", cores=(core,)),)})
    with local_ort.DRIVER.open(device, AT_ONCE) as session:
        assert session.conditions.cores == (core,)


def test_both_runtimes_share_a_core_when_measured_together(tmp_path):
    files = [good_file(driver, tmp_path) for driver in (local_ort.DRIVER, local_litert.DRIVER)]
    preset = Preset(
        "test", "", min_runs=15, min_seconds=0, rounds=5, process_rounds=5, warmup_seconds=0, score="median"
    )
    with opened(local_ort.DRIVER) as first, opened(local_litert.DRIVER) as second:
        found = measure(
            list(zip(files, (first, second), strict=True)),
            preset,
            seed=0,
            profile=True,
            progress=NO_PROGRESS,
        )
    assert found[0].conditions.cores == found[1].conditions.cores
    assert [one.summary.runs for one in found] == [15, 15]
    assert compare(found[0].bursts, found[1].bursts, names=("onnx", "tflite"), paired=True).rounds == 5
    assert (len(found[0].operators) > 0, found[1].operators) == (True, ())


@BOTH
def test_a_missing_file_is_an_error_of_one_line(driver, tmp_path):
    with opened(driver) as session, pytest.raises(ExportError, match="gone: there is no such file") as caught:
        session.load(tmp_path / "gone")
    assert "\n" not in str(caught.value)


@BOTH
@pytest.mark.parametrize("content", [b"", b"neither format at all", b"PK\x03\x04" + bytes(50)])
def test_other_files_are_refused(driver, tmp_path, content, capfd):
    file = tmp_path / "other"
    file.write_bytes(content)
    with opened(driver) as session, pytest.raises(ExportError) as caught:
        session.load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@BOTH
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_truncated_file_is_refused(driver, tmp_path, share):
    file = good_file(driver, tmp_path)
    data = Path(file).read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    with opened(driver) as session, pytest.raises(ExportError, match=file.name) as caught:
        session.load(file)
    assert "\n" not in str(caught.value)


@BOTH
def test_the_runtimes_are_silent(driver, tmp_path):
    code = f"""
from pathlib import Path
from edgecompress.core.device import Device
from edgecompress.devices.contract import BurstSize, Options
from {driver.open.__module__} import DRIVER

device, file = Device(name="local", title="", drivers=("any",)), Path({str(good_file(driver, tmp_path))!r})
with DRIVER.open(device, Options()) as session:
    session.load(file)
    session.burst(file, BurstSize(5, 0.0, 0.0))
    session.profile(file)
"""  # in a process of its own: they greet once
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "uint8"])
def test_onnx_inputs_of_the_usual_types_are_made_up(kind, tmp_path):
    file = write_net(tmp_path / "net.onnx", kind=kind)
    with opened(local_ort.DRIVER) as session:
        session.load(file)
        assert session.burst(file, FEW).runs == 5


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "uint8"])
def test_tflite_inputs_of_the_usual_types_are_made_up(kind, tmp_path):
    file = write_chain(tmp_path / "net.tflite", ["RELU", "RELU"], kind=kind)
    with opened(local_litert.DRIVER) as session:
        session.load(file)
        assert session.burst(file, FEW).runs == 5


def test_an_int8_network_runs(tmp_path):
    file = FILES / "small_int8.tflite"
    with opened(local_litert.DRIVER) as session:
        assert session.load(file).notes == ()
        assert session.burst(file, FEW).runs == 5


@BOTH
def test_inputs_of_other_types_are_refused(driver, tmp_path):
    if driver is local_ort.DRIVER:
        file = write_net(tmp_path / "net.onnx", kind="int64")
    else:
        file = write_chain(tmp_path / "net.tflite", ["RELU"], kind="int64")
    with opened(driver) as session, pytest.raises(ExportError, match=r"net\..*: input .* is of type .*int64"):
        session.load(file)


def test_free_axes_of_onnx_have_length_1(tmp_path):
    file = write_net(tmp_path / "net.onnx", shape=("batch", 3, 8, "width"))
    with opened(local_ort.DRIVER) as session:
        session.load(file)
        assert session.burst(file, FEW).runs == 5


def test_onnx_nodes_are_timed_in_order(tmp_path):
    file = write_net(tmp_path / "net.onnx", kind="uint8")
    with opened(local_ort.DRIVER) as session:
        session.load(file)
        found = session.profile(file)
    assert [one.kind for one in found][:2] == ["Cast", "Conv"]
    assert all(one.calls == 1 and one.mean_ms >= 0 for one in found)
    assert list(tmp_path.iterdir()) == [file]  # the profile is not left behind


def test_operators_of_a_tflite_file_are_counted(tmp_path):
    file = write_chain(tmp_path / "net.tflite", ["RELU", "SIGN", "RELU", "ABS"])
    assert count_operators(file) == {"ABS": 1, "RELU": 2, "SIGN": 1}
    assert count_operators(FILES / "small.tflite")["DEPTHWISE_CONV_2D"] == 1


def test_operators_xnnpack_does_not_take_are_named(tmp_path):
    file = write_chain(tmp_path / "net.tflite", ["RELU", "SIGN", "RELU", "SIGN", "ZEROS_LIKE", "ABS"])
    assert operators_outside_delegate(file) == {"SIGN": 2, "ZEROS_LIKE": 1}
    assert operators_outside_delegate(FILES / "small.tflite") == {}
    with opened(local_litert.DRIVER) as session:
        assert session.load(file).notes == ("not run by XNNPACK: 2 SIGN, 1 ZEROS_LIKE",)


@pytest.mark.parametrize("function", [count_operators, operators_outside_delegate])
def test_counting_operators_of_other_files_is_refused(function, tmp_path):
    other, cut = write_net(tmp_path / "net.onnx"), tmp_path / "cut.tflite"
    cut.write_bytes((FILES / "small.tflite").read_bytes()[:40])
    with pytest.raises(ExportError, match=r"net\.onnx: is not a TFLite file"):
        function(other)
    for file in (cut, tmp_path / "gone"):
        with pytest.raises(ExportError, match=file.name):
            function(file)


def test_waiting_for_other_programs_ends(tmp_path):
    with opened(local_ort.DRIVER) as session:
        assert all("other programs" in remark for remark in session.settle())


def test_busy_shares_are_shares():
    shares = this_machine.busy_shares(0.05)
    assert set(os.sched_getaffinity(0)) <= set(shares)
    assert all(0 <= share <= 1 for share in shares.values())
