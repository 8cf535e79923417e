"""What goes wrong around the emulated core: a qemu that misbehaves is a script, nothing is emulated."""

from dataclasses import replace
from pathlib import Path

import pytest
from built_runner import SMALL, SMALL_INT8
from emulated_core import EMULATION
from made_counts import counts

from edgecompress.core.counts import CLASSES, COUNTERS, modelled_ms, pick_model
from edgecompress.core.plugins import discover
from edgecompress.core.statistics import check_alike
from edgecompress.devices import emulated
from edgecompress.devices.contract import Driver, Options
from edgecompress.devices.emulated import DRIVER, count
from edgecompress.devices.files import load_device
from edgecompress.devices.native import emulation
from edgecompress.devices.native.build import LIBRARY
from edgecompress.devices.native.emulation import Prepared, prepare_emulation
from edgecompress.devices.qemu import check_emulation, find_qemu, parse_marks
from edgecompress.devices.tflite_contents import read_contents
from edgecompress.errors import ConfigError, DeviceError, EdgeCompressError, ExportError, MissingPackage
from edgecompress.pipeline.device import prepare

pytest.importorskip("ai_edge_litert")
SEEN = dict.fromkeys(COUNTERS, 1) | {"instructions": len(CLASSES), "bytes_loaded": 64}
LINE = " ".join(f"{name}={value}" for name, value in SEEN.items() if name != "bytes_stored")
MARKS = [f"mark={number} {LINE} bytes_stored={number}" for number in range(4)]


@pytest.fixture
def core(tmp_path, monkeypatch):
    """An emulated core of empty files, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "core, prepared"
    (folder / "root").mkdir(parents=True)
    for name in ("litert_runner", LIBRARY, "count_plugin.so", "root/cpuinfo"):
        (folder / name).write_text(name)
    return Prepared(
        folder / "litert_runner", folder / "count_plugin.so", folder / "root", "cortex-a76", "2.3.0"
    )


@pytest.fixture
def qemu(tmp_path, monkeypatch):
    """Makes a qemu that does as a script says."""

    def make(script, *, told="-plugin  QEMU_PLUGIN"):
        program = tmp_path / "bin" / "qemu-aarch64"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nif [ "$1" = -help ]; then echo "{told}"; exit; fi\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))

    return make


def writing(*lines):
    return "\n".join(f"echo '{line}' >> counts.txt" for line in lines)


def check_one_line(caught, *parts):
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


# Runs that fail


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("kill -ILL $$", DeviceError, "needs an instruction the emulated cortex-a76 lacks"),
        ("kill -SEGV $$", ExportError, "crashed with it on the emulated cortex-a76 (signal 11)"),
        ("kill -KILL $$", DeviceError, "free memory"),
        ("echo 'litert_runner: reading the file failed' >&2; exit 1", ExportError, "reading the file failed"),
        ("echo 'litert_runner: out of memory' >&2; exit 3", DeviceError, "out of memory"),
        ("echo 'Could not load plugin x: API version 1' >&2; exit 1", MissingPackage, "release 6 to 8"),
        ("echo 'Could not open /lib/ld-linux' >&2; exit 255", DeviceError, "Could not open /lib/ld-linux"),
        ("exit 7", DeviceError, "printed nothing"),
        ("exit 0", DeviceError, "0 of 4 marks"),
        (writing(*MARKS[:2]), DeviceError, "2 of 4 marks"),
        (writing(*MARKS[1:]), DeviceError, "3 of 4 marks"),
    ],
)
def test_a_run_that_fails_is_told_in_one_line(core, qemu, script, error, said):
    qemu(script)
    with pytest.raises(error) as caught:
        count(SMALL, core)
    check_one_line(caught, said)
    assert not list(Path(emulated.cache_directory()).rglob("*.json"))


def test_a_run_that_takes_too_long_is_ended(core, qemu):
    qemu("exec sleep 30")
    with pytest.raises(DeviceError) as caught:
        count(SMALL, core, timeout_s=0.3)
    check_one_line(caught, "small.tflite", "0.3 s", "--timeout")


@pytest.mark.parametrize(
    ("content", "said"), [(None, "there is no such file"), (b"text", "is not a TFLite file")]
)
def test_a_bad_file_is_found_before_qemu_is_started(core, tmp_path, content, said):
    file = tmp_path / "bad.tflite"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ExportError) as caught:
        count(file, core)
    check_one_line(caught, "bad.tflite", said)


def test_a_missing_qemu_comes_with_the_package_to_install(core, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackage) as caught:
        find_qemu()
    check_one_line(caught, "apt-get install qemu-user")


@pytest.mark.parametrize(
    "told", ["-plugin  QEMU_PLUGIN", '$(/bin/rm "$0")-plugin  QEMU_PLUGIN'], ids=["at its run", "before it"]
)
def test_a_qemu_that_goes_while_it_is_used_is_missing(core, qemu, told):
    qemu('/bin/rm "$0"; exit 2', told=told)
    with pytest.raises(MissingPackage) as caught:
        count(SMALL, core)
    check_one_line(caught, "apt-get install qemu-user")


def test_a_qemu_without_plugins_is_told_from_one_with(core, qemu):
    qemu("exit 0", told="-version  no such option as the plugin one")
    with pytest.raises(MissingPackage) as caught:
        count(SMALL, core)
    check_one_line(caught, "takes no plugins", "Debian 12")


def test_a_trial_that_does_not_end_as_it_should_is_a_failure(core, qemu):
    qemu("echo 'litert_runner: --graph=FILE is missing' >&2; exit 2")
    check_emulation(core)
    qemu("echo 'litert_runner: libc.so.6: cannot open' >&2; exit 127")
    with pytest.raises(DeviceError, match=r"libc\.so\.6"):
        check_emulation(core)


# Counts that are kept


def test_the_last_inference_counts_and_is_kept(core, qemu):
    qemu(writing(*MARKS))
    first = count(SMALL, core)
    assert first.bytes_stored == 3
    qemu("exit 1")
    assert count(SMALL, core) == first


@pytest.mark.parametrize("changed", ["runner", "plugin", "cpu", "root", "library", "file"])
def test_whatever_decides_a_count_is_counted_anew(core, qemu, changed):
    qemu(writing(*MARKS))
    count(SMALL, core)
    qemu("exit 9")
    file = SMALL_INT8 if changed == "file" else SMALL
    if changed == "cpu":
        core = replace(core, cpu="cortex-a72")
    elif changed == "library":
        core.runner.with_name(LIBRARY).write_text("another")
    elif changed == "root":
        (core.root / "cpuinfo").write_text("another")
    elif changed in ("runner", "plugin"):
        getattr(core, changed).write_text("another")
    with pytest.raises(DeviceError, match="failed"):
        count(file, replace(core))  # as found anew: what it consists of is looked at once


def test_a_damaged_count_is_counted_anew(core, qemu):
    qemu(writing(*MARKS))
    first = count(SMALL, core)
    (kept,) = Path(emulated.cache_directory()).rglob("*.json")
    kept.write_text(kept.read_text()[:40])
    assert count(SMALL, core) == first


def test_marks_are_read_by_name():
    assert parse_marks("\n".join(MARKS), file="x")[-1] == {
        name: int(value) for name, value in (word.split("=") for word in MARKS[-1].split()[1:])
    }


# Devices


def test_the_driver_is_discovered():
    from edgecompress import devices

    assert discover(devices, Driver)["emulated"] is DRIVER


def test_the_shipped_file_has_models_for_its_own_clusters():
    device = load_device("emulated-a76")
    names = [one.name for one in device.clusters]
    keys = [(one.cluster, one.dtype) for one in device.count_models]
    assert ("prime", "float32") in keys
    assert len(set(keys)) == len(keys)
    assert {cluster for cluster, _ in keys} <= set(names)
    assert device.emulation.cpu == "cortex-a76"


A_NETWORK = counts(
    multiplies=10**8, simd=10**7, loop_cycles=5 * 10**7, bytes_stored=2 * 10**7, weight_bytes=10**7
)
CYCLES = {"float32": {"loop_cycles": 1.0}, "int8": {"multiplies": 0.5, "simd": 0.5}}
"""The least a processor needs for one; it has two pipes for vectors."""


@pytest.mark.parametrize("dtype", CYCLES)
def test_the_shipped_models_are_sane(dtype):
    device = load_device("emulated-a76")
    ghz = {one.name: one.max_ghz for one in device.clusters}
    prime, gold = (pick_model(device.count_models, cluster=name, dtype=dtype) for name in ("prime", "gold"))
    for model in (prime, gold):
        assert model.left_out
        assert not model.provisional
        assert len(model.nets) == len(set(model.nets)) > 50
        assert min(model.coefficients_us.values()) > 0
        for name, cycles in CYCLES[dtype].items():
            assert model.coefficients_us[name] > 1e3 * cycles / ghz[model.cluster]
        assert model.median_error <= model.mean_error < 0.1
        assert modelled_ms(A_NETWORK, model) == pytest.approx(25 if dtype == "float32" else 32, rel=0.3)
    assert 1.05 < modelled_ms(A_NETWORK, gold) / modelled_ms(A_NETWORK, prime) < 1.3  # by their clocks 1.17


def opened(device, options):
    with DRIVER.open(device, options):
        pass


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, Options(threads=2), "one thread"),
        ({"emulation": None}, Options(), "no [emulation]"),
        ({}, Options(), "edgecompress device prepare emulated-a76"),
    ],
)
def test_a_device_that_cannot_be_opened_says_why(core, changes, options, said):
    device = load_device("emulated-a76").model_copy(update=changes)
    with pytest.raises(EdgeCompressError) as caught:
        opened(device, options)
    check_one_line(caught, said)


@pytest.mark.parametrize("cores", [(0, 7), (99,)])
def test_cores_must_be_of_one_cluster(core, monkeypatch, cores):
    monkeypatch.setattr(emulated, "find_prepared", lambda device: core)
    with pytest.raises(DeviceError) as caught:
        opened(load_device("emulated-a76"), Options(cores=cores))
    check_one_line(caught, "of no one cluster")


def test_other_models_are_other_conditions(core, monkeypatch):
    monkeypatch.setattr(emulated, "find_prepared", lambda device: core)
    one = load_device("emulated-a76")
    other = one.model_copy(update={"count_models": one.count_models[:1]})
    with DRIVER.open(one, Options()) as first, DRIVER.open(other, Options()) as second:
        assert first.conditions.build != second.conditions.build
        check_alike(first.conditions, first.conditions)
        with pytest.raises(ConfigError, match="build is"):
            check_alike(first.conditions, second.conditions)


def test_a_core_without_a_model_lists_the_models(core, monkeypatch, qemu):
    qemu(writing(*MARKS))
    monkeypatch.setattr(emulated, "find_prepared", lambda device: core)
    asked = Options(cores=(0,))
    with DRIVER.open(load_device("emulated-a76"), asked) as session, pytest.raises(ConfigError) as caught:
        session.load(SMALL)
    check_one_line(caught, "no count model for silver float32", "prime float32")


# Preparing


def test_missing_libraries_come_with_their_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(emulation, "CROSS_LIBRARIES", tmp_path)
    monkeypatch.setattr(emulation, "compile_plugin", lambda plugin: plugin.touch())
    monkeypatch.setattr(emulation.build, "prepare", lambda directory, **more: None)
    with pytest.raises(MissingPackage) as caught:
        prepare_emulation(tmp_path / "cache", EMULATION)
    check_one_line(caught, "libc6-arm64-cross", "libgcc-s1-arm64-cross", "libstdc++6-arm64-cross")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_compiler_for_this_machine_the_plugin_is_not_built(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackage) as caught:
        emulation.compile_plugin(tmp_path / "plugin.so")
    check_one_line(caught, "cc: no compiler", "apt-get install gcc")


def test_preparing_asks_for_qemu_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackage, match="qemu-user"):
        prepare("emulated-a76", directory=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_another_machine_cannot_be_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="--machine x86_64: emulated-a76 emulates aarch64"):
        prepare("emulated-a76", machine="x86_64", directory=tmp_path)


def test_an_emulated_device_without_its_description_is_refused(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('title = "mine"\ndrivers = ["emulated"]\n')
    with pytest.raises(ConfigError, match=r"no \[emulation\]"):
        prepare(str(file), directory=tmp_path)


@pytest.mark.parametrize(("file", "dtype"), [(SMALL, "float32"), (SMALL_INT8, "int8")])
def test_what_a_file_computes_in_is_read_from_it(file, dtype):
    found = read_contents(file)
    assert (found.dtype, found.operators) == (dtype, 4)
    each = 1 if dtype == "int8" else 4
    assert each * 368 <= found.weight_bytes < file.stat().st_size


def test_a_damaged_file_is_told(tmp_path):
    cut = tmp_path / "cut.tflite"
    cut.write_bytes(SMALL.read_bytes()[:100])
    with pytest.raises(ExportError, match="damaged"):
        read_contents(cut)
