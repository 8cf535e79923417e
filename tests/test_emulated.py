"""The emulated core for real: qemu, our runner for ARM and LiteRT's library from its wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from built_runner import FREE_SIZE, PARTLY, SMALL, SMALL_INT8
from emulated_core import EMULATION, WHEEL, arm_cache, lacking_for_networks, prepared
from tflite_files import write_chain
from typer.testing import CliRunner

from edgecompress.cli.device import app
from edgecompress.core.counts import COUNTERS
from edgecompress.core.measurement import BenchResult
from edgecompress.devices.arm_parity import parity_on_arm
from edgecompress.devices.contract import BurstSize, Options
from edgecompress.devices.emulated import DRIVER, count
from edgecompress.devices.files import load_device
from edgecompress.devices.native.build import DevicePrepared
from edgecompress.devices.native.emulation import prepare_emulation
from edgecompress.devices.qemu import check_emulation, counted_marks
from edgecompress.errors import DeviceError, ExportError
from edgecompress.pipeline.bench import bench
from edgecompress.report.devices import prepared_text

__all__ = ["arm_cache", "prepared"]

pytestmark = pytest.mark.skipif(
    bool(lacking_for_networks()), reason=f"not here: {', '.join(lacking_for_networks())}"
)
DEVICE = load_device("emulated-a76")
ONE = BurstSize(min_runs=50, min_seconds=1.0, warmup_seconds=1.0)


@pytest.fixture(autouse=True)
def own_cache(arm_cache, monkeypatch):
    """Counts and what was prepared are kept in the tests' own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(arm_cache))


# Counting


@pytest.mark.parametrize("file", [SMALL, SMALL_INT8, PARTLY], ids=lambda path: path.stem)
def test_two_processes_count_the_same(prepared, tmp_path, monkeypatch, file):
    copy = tmp_path / "a file of another name.tflite"
    copy.write_bytes(file.read_bytes())
    one = counted_marks(file, prepared, timeout_s=60)
    monkeypatch.setenv("A_LONG_VARIABLE", "x" * 4000)
    other = counted_marks(copy, prepared, timeout_s=60)
    assert one == other


def test_the_place_of_the_files_does_not_matter(prepared, tmp_path, monkeypatch):
    here = counted_marks(SMALL, prepared, timeout_s=60)
    elsewhere = tmp_path / "a place with a longer name"
    shutil.copytree(prepared.runner.parent, elsewhere / "runner")
    shutil.copytree(prepared.root, elsewhere / "root", symlinks=True)
    other = replace(prepared, runner=elsewhere / "runner" / prepared.runner.name, root=elsewhere / "root")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert other.identity == prepared.identity
    assert counted_marks(SMALL, other, timeout_s=60) == here


def test_the_core_of_this_machine_does_not_matter(prepared):
    """Kernels are picked by the core a program runs on, and qemu tells it the number of the real one."""
    everywhere, found = os.sched_getaffinity(0), []
    try:
        for core in (min(everywhere), max(everywhere)):
            os.sched_setaffinity(0, {core})
            found.append(counted_marks(SMALL, prepared, timeout_s=60)[-1])
    finally:
        os.sched_setaffinity(0, everywhere)
    assert found[0] == found[1]


def test_all_that_is_read_of_the_processor_is_ours(prepared):
    words = ["qemu-aarch64", "-strace", "-cpu", prepared.cpu, "-L", prepared.root, prepared.runner]
    done = subprocess.run([*words, f"--graph={SMALL}", "--num_runs=1"], capture_output=True, text=True)
    read = re.findall(r'openat\([^"]*"/((?:sys|proc|etc)/[^"]*)"', done.stdout + done.stderr)
    assert "proc/cpuinfo" in read
    assert [name for name in read if not (prepared.root / name).is_file()] == []


def test_kernels_follow_the_processor_that_is_described(prepared, arm_cache):
    little = EMULATION.model_copy(update={"part": "0x805"})  # a Cortex-A55, in order
    other = prepare_emulation(arm_cache / "edgecompress", little)
    assert count(SMALL, other).instructions > count(SMALL, prepared).instructions


def test_the_second_inference_is_nearly_like_all_later_ones(prepared, tmp_path):
    program, plugin = prepared.runner, prepared.plugin
    words = ["qemu-aarch64", "-cpu", prepared.cpu, "-L", prepared.root]
    words += ["-plugin", f"file={plugin},out={tmp_path / 'counts'}", program]
    subprocess.run([*words, f"--graph={SMALL}", "--num_runs=5", "--mark"], check=True, capture_output=True)
    lines = (tmp_path / "counts").read_text().splitlines()[1::2]
    instructions = [int(dict(word.split("=") for word in line.split())["instructions"]) for line in lines]
    assert len(instructions) == 6
    assert len(set(instructions[2:])) == 1
    assert 0 <= instructions[1] - instructions[2] < 200
    assert instructions[0] > instructions[1] + 1000  # it sets up memory


def test_less_is_missed_level_by_level_and_waiting_takes_longer(prepared):
    counted = count(SMALL, prepared)
    assert counted.l1_misses >= counted.l2_misses >= counted.l3_misses >= counted.l3_jumps
    assert counted.instructions / 4 <= counted.issue_cycles <= counted.loop_cycles < counted.instructions


def test_a_bigger_network_costs_more(prepared, tmp_path):
    def chain(name, length, side):
        operators = ["TANH", "LOGISTIC"] * length
        return count(write_chain(tmp_path / f"{name}.tflite", operators, shape=(1, side, side, 8)), prepared)

    small, deep, wide = chain("small", 1, 8), chain("deep", 4, 8), chain("wide", 1, 32)
    assert small.operators * 4 == deep.operators
    for one in (deep, wide):
        assert all(getattr(one, name) > getattr(small, name) for name in ("instructions", "bytes_loaded"))
        assert one.multiplies + one.simd > 3 * (small.multiplies + small.simd)


def test_at_least_every_product_is_counted_once(prepared):
    counted = count(SMALL, prepared)
    macs = 8 * 8 * 8 * (27 + 9) + 80  # two convolutions and a linear layer
    lanes = 4
    assert macs / lanes <= counted.multiplies <= 2 * macs / lanes
    assert counted.weight_bytes >= 4 * (27 * 8 + 9 * 8 + 80)
    assert counted.bytes_loaded >= counted.weight_bytes


def test_int8_multiplies_less_often_than_float(prepared):
    assert count(SMALL_INT8, prepared).multiplies < count(SMALL, prepared).multiplies


def test_what_was_counted_is_kept(prepared, monkeypatch, tmp_path):
    first = count(SMALL, prepared)
    monkeypatch.setenv("PATH", str(tmp_path))  # no qemu any more
    assert count(SMALL, prepared) == first


# What it computes


@pytest.mark.parametrize("file", [SMALL, SMALL_INT8, PARTLY], ids=lambda path: path.stem)
def test_arm_code_computes_what_this_machine_computes(prepared, file):
    rng = np.random.default_rng(3)
    values = rng.uniform(-1, 1, (1, 16, 16, 3))
    inputs = np.round(127 * values).astype(np.int8) if file == SMALL_INT8 else values.astype(np.float32)
    found = parity_on_arm(file, inputs, prepared)
    assert found.agrees, found
    assert file != SMALL_INT8 or found.max_difference == 0


def test_inputs_that_do_not_fit_are_refused(prepared):
    with pytest.raises(ExportError, match=r"takes float32 of shape \(1, 16, 16, 3\), not int8"):
        parity_on_arm(SMALL, np.zeros((1, 16, 16, 3), np.int8), prepared)


# The driver


def test_a_burst_is_one_exact_run_of_modelled_milliseconds():
    with DRIVER.open(DEVICE, Options()) as session:
        notes = session.load(SMALL).notes
        one, other = session.burst(SMALL, ONE), session.burst(SMALL, ONE)
    assert one.exact
    assert (one.runs, one.std_ms, one.samples_ms) == (1, 0, (one.median_ms,))
    assert one.model_copy(update={"started_s": other.started_s}) == other
    assert session.conditions.provenance == "emulated"
    assert session.conditions.cores == (7,)
    assert any("modelled, not timed" in note for note in notes)


def test_operators_outside_the_delegate_are_noted():
    with DRIVER.open(DEVICE, Options()) as session:
        assert "not run by XNNPACK: 1 CUMSUM" in session.load(PARTLY).notes


def test_a_file_that_cannot_run_is_told_in_one_line(tmp_path):
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(SMALL.read_bytes()[:-200])
    with DRIVER.open(DEVICE, Options()) as session:
        for file, said in ((FREE_SIZE, "not fixed"), (broken, "broken.tflite")):
            with pytest.raises(ExportError) as caught:
                session.load(file)
            assert said in str(caught.value)
            assert "\n" not in str(caught.value)


def test_files_are_compared_without_doubt(tmp_path):
    result = bench([str(SMALL), str(SMALL_INT8)], device="emulated-a76", output=tmp_path / "bench.json")
    (found,) = result.benches
    assert [(one.summary.runs, one.validity.valid) for one in found.measurements] == [(1, True)] * 2
    (compared,) = found.comparisons
    assert compared.interval.low == compared.speedup == compared.interval.high
    dense, small = (one.summary.median_ms for one in found.measurements)
    assert compared.speedup == pytest.approx(dense / small)
    assert BenchResult.model_validate_json((tmp_path / "bench.json").read_text()) == result


# Preparing


def test_prepare_builds_and_tries_the_emulated_core(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["prepare", "emulated-a76", "--litert-wheel", WHEEL, "--json"])
    assert result.exit_code == 0, result.stderr
    made = DevicePrepared.model_validate(json.loads(result.stdout))
    text = prepared_text(made)
    assert all(path in text for path in (made.runner, made.library, made.plugin, made.root))
    again = prepare_emulation(tmp_path / "edgecompress", EMULATION)
    assert (str(again.runner), str(again.plugin), str(again.root)) == (made.runner, made.plugin, made.root)


def test_an_emulated_core_without_a_library_fails_its_trial(prepared, tmp_path):
    shutil.copytree(prepared.root, tmp_path / "root", symlinks=True)
    next((tmp_path / "root").rglob("libstdc++.so.6")).unlink()
    broken = replace(prepared, root=tmp_path / "root")
    assert broken.identity != prepared.identity
    check_emulation(prepared)
    with pytest.raises(DeviceError, match=r"libstdc\+\+\.so\.6"):
        check_emulation(broken)


def test_instructions_the_processor_lacks_are_told(prepared):
    older = replace(prepared, cpu="cortex-a72")  # without the dot product it is told of
    with pytest.raises(DeviceError, match="needs an instruction the emulated cortex-a72 lacks"):
        count(SMALL_INT8, older)


def test_counting_does_not_need_torch():
    code = "import sys, edgecompress.devices.emulated; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_counters_are_those_of_the_plugin(prepared):
    last = counted_marks(PARTLY, prepared, timeout_s=60)[-1]
    assert tuple(last) == COUNTERS
