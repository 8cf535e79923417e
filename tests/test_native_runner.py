import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from built_runner import FREE_SIZE, PARTLY, SMALL, SMALL_INT8, built, built_cache, call

from edgecompress.devices.benchmark_model import parse

__all__ = ["built", "built_cache"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the runner is for Linux")

MODEL, USAGE, SYSTEM, TIME = 1, 2, 3, 4
"""Whose fault it is, by exit code."""


def run(built, *options, graph=SMALL, **more):
    return call(built.runner, f"--graph={graph}", *options, **more)


def samples_us(out):
    return [float(us) for us in re.findall(r"^sample_us=([\d.]+)$", out, re.M)]


def pair(out, name):
    return re.search(rf"\b{name}=(\S+)", out)[1]


# What it computes


def outputs_in_python(graph, image):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(graph), num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def images(graph):
    rng = np.random.default_rng(1)
    if graph == SMALL_INT8:
        return rng.integers(-128, 128, (1, 16, 16, 3)).astype(np.int8)
    return rng.uniform(-1, 1, (1, 16, 16, 3)).astype(np.float32)


@pytest.mark.parametrize("graph", [SMALL, SMALL_INT8, PARTLY], ids=lambda path: path.stem)
@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes_what_litert_computes_in_python(built, tmp_path, graph, threads):
    image = images(graph)
    (tmp_path / "image").write_bytes(image.tobytes())
    files = f"--input={tmp_path / 'image'}", f"--output={tmp_path / 'out'}"
    done = run(built, *files, f"--num_threads={threads}", "--num_runs=3", graph=graph)
    assert (done.returncode, done.stderr) == (0, "")
    expected = outputs_in_python(graph, image)
    found = np.frombuffer((tmp_path / "out").read_bytes(), expected.dtype).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert len(np.unique(expected)) > 1


def fnv1a(data):
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 % 2**32
    return f"{value:08x}"


def test_the_hash_it_prints_is_that_of_the_outputs(built, tmp_path):
    done = run(built, f"--output={tmp_path / 'out'}", "--num_runs=1")
    data = (tmp_path / "out").read_bytes()
    assert pair(done.stdout, "output_fnv1a") == fnv1a(data)
    assert pair(done.stdout, "output_bytes") == str(len(data)) == "40"


def test_without_an_input_file_the_outputs_are_the_same_every_time(built):
    hashes = {pair(run(built, "--num_runs=2").stdout, "output_fnv1a") for _ in range(2)}
    assert len(hashes) == 1


def test_operators_outside_the_delegate_are_told(built):
    assert pair(run(built, "--num_runs=1").stdout, "fully_delegated") == "1"
    assert pair(run(built, "--num_runs=1", graph=PARTLY).stdout, "fully_delegated") == "0"


# What it measures


def test_the_summary_follows_from_the_raw_samples(built):
    out = run(built, "--num_runs=41", "--raw").stdout
    samples, inference = samples_us(out), parse(out).inference
    assert len(samples) == inference.runs == 41
    assert inference.mean_ms == pytest.approx(statistics.fmean(samples) / 1e3, abs=2e-6)
    assert inference.median_ms == pytest.approx(statistics.median(samples) / 1e3, abs=2e-6)
    assert inference.std_ms == pytest.approx(statistics.pstdev(samples) / 1e3, abs=2e-6)
    assert (inference.min_ms, inference.max_ms) == (min(samples) / 1e3, max(samples) / 1e3)
    assert (inference.p5_ms, inference.p95_ms) == (sorted(samples)[2] / 1e3, sorted(samples)[38] / 1e3)


def test_the_parser_of_benchmark_model_reads_it(built):
    report = parse(run(built, "--num_runs=5").stdout)
    assert report.init_ms > 0
    assert report.first_ms > 0
    assert report.warmup.runs == 1
    assert report.failure is None


def test_runs_go_on_until_runs_and_seconds_are_both_reached(built):
    few = samples_us(run(built, "--num_runs=3", "--raw").stdout)
    long = samples_us(run(built, "--num_runs=3", "--min_secs=0.1", "--raw").stdout)
    many = samples_us(run(built, "--num_runs=500", "--min_secs=0.0001", "--raw").stdout)
    assert len(few) == 3
    assert sum(long[:-1]) < 0.1e6 <= sum(long) + 0.001 * len(long)  # printed to a nanosecond
    assert len(many) == 500


def test_the_warm_up_is_not_counted(built):
    report = parse(run(built, "--num_runs=4", "--warmup_secs=0.05").stdout)
    assert report.warmup.runs > 4
    assert report.inference.runs == 4


def test_samples_are_printed_only_when_asked_for(built):
    assert samples_us(run(built, "--num_runs=3").stdout) == []


def test_time_computing_is_told_for_one_thread_and_never_more_than_passed(built):
    out = run(built, "--num_runs=100").stdout
    assert 0 < float(pair(out, "cpu_us")) <= float(pair(out, "wall_us")) * 1.01
    assert "cpu_us" not in run(built, "--num_runs=1", "--num_threads=2").stdout


def test_it_uses_as_many_threads_as_asked_for(built):
    def threads(asked):
        words = [built.runner, f"--graph={SMALL}", "--min_secs=30", f"--num_threads={asked}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            for line in process.stdout:
                if b"XNNPACK delegate" in line:
                    break
            time.sleep(0.2)
            count = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
            process.kill()
        return count

    assert threads(3) - threads(1) == 2


COUNT_MARKS = """
#include <stdarg.h>
#include <stdio.h>
long syscall(long number, ...) {
    va_list words;
    va_start(words, number);
    long first = va_arg(words, long), second = va_arg(words, long);
    va_end(words);
    printf("edge %ld %lx %ld\\n", number, first, second);
    return 0;
}
"""


def test_marks_surround_every_run(built, tmp_path):
    (tmp_path / "marks.c").write_text(COUNT_MARKS)
    shim = tmp_path / "marks.so"
    assert call("cc", "-shared", "-fPIC", "-o", shim, tmp_path / "marks.c").returncode == 0
    out = run(built, "--num_runs=3", "--mark", env={"LD_PRELOAD": str(shim)}).stdout
    edges = [words.split() for words in re.findall(r"^edge (.*)$", out, re.M)]
    marks = [int(last) for _, magic, last in edges if magic == "4d41524b"]
    assert marks == list(range(2 * (1 + 3)))  # the warm-up is a run too
    without = run(built, "--num_runs=3", env={"LD_PRELOAD": str(shim)}).stdout
    assert "4d41524b" not in without


# How it fails


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--graph=no-such.tflite"], MODEL, "no-such.tflite: No such file"),
        ([f"--graph={__file__}"], MODEL, "reading the file"),
        ([f"--graph={FREE_SIZE}"], MODEL, "not fixed"),
        ([], USAGE, "--graph=FILE is missing"),
        (["--speed=9"], USAGE, "--speed=9: unknown option"),
        (["--num_runs=0"], USAGE, "--num_runs=0"),
        (["--num_runs=3x"], USAGE, "--num_runs=3x"),
        (["--min_secs=-1"], USAGE, "--min_secs=-1"),
        (["--min_secs=nan"], USAGE, "--min_secs=nan"),
        ([f"--graph={SMALL}", f"--input={SMALL_INT8}"], MODEL, "too long"),
        ([f"--graph={SMALL}", "--input=/dev/null"], MODEL, "too short"),
        ([f"--graph={SMALL}", "--input=no-such"], SYSTEM, "no-such: No such file"),
        ([f"--graph={SMALL}", "--output=no-such/out"], SYSTEM, "No such file"),
        ([f"--graph={SMALL}", "--min_secs=9", "--max_secs=0.3"], TIME, "--max_secs"),
    ],
)
def test_a_failure_is_one_line_and_tells_whose_fault_it_is(built, tmp_path, options, code, said):
    done = call(built.runner, *options, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith("litert_runner: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_cannot_be_written_leave_nothing(built, tmp_path):
    (tmp_path / "folder").mkdir()
    done = run(built, f"--output={tmp_path / 'folder'}")
    assert done.returncode == SYSTEM
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_output_that_cannot_be_printed_is_a_failure(built):
    with Path("/dev/full").open("w") as full:
        words = [built.runner, f"--graph={SMALL}"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == SYSTEM
    assert "No space left" in done.stderr
