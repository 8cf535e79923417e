"""The text of benchmark_model, in every form its builds have printed."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phone.phone import SAMPLES

from edgecompress.devices.benchmark_model import Stretch, command, delegate_notes, last_line, parse

TEXTS = {path.stem: path.read_text() for path in sorted(SAMPLES.glob("*.txt"))}
FINISHED = sorted(TEXTS.keys() - {"failed", "not_a_model", "silent", "operators_csv"})
microseconds = st.integers(1, 10**9)


def inference(name: str) -> Stretch:
    found = parse(TEXTS[name]).inference
    assert found is not None
    return found


@pytest.mark.parametrize("name", FINISHED)
def test_every_form_has_its_mean_between_its_extremes(name):
    report = parse(TEXTS[name])
    assert report.failure is None
    assert report.init_ms is not None and report.init_ms > 0
    found = inference(name)
    assert found.runs is not None and found.runs > 1
    assert found.min_ms is not None and found.max_ms is not None
    assert found.min_ms <= found.mean_ms <= found.max_ms


def test_what_one_run_prints_is_read_whole():
    report = parse(TEXTS["percentiles"])
    assert (report.init_ms, report.first_ms) == (9.412, 14.503)
    assert report.warmup is not None and report.warmup.runs == 41
    assert inference("percentiles") == Stretch(82, 12.3816, 12.094, 19.022, 0.901, 12.11, 12.205, 12.947)
    assert report.peak_memory_mb == 11.25  # the watched peak, not the smaller difference before it


def test_large_numbers_have_exponents():
    found = inference("plain")
    assert (found.mean_ms, found.median_ms) == (1701.35, None)


def test_a_single_run_is_its_own_minimum_median_and_maximum():
    warmup = parse(TEXTS["plain"]).warmup
    assert warmup == Stretch(1, *[1730.442] * 3, None, *[1730.442] * 3)


def test_runs_that_are_all_alike_have_no_spread():
    text = "count=7 curr=250(all same)\n\nInference timings in us: Init: 5, Inference (avg): 250"
    assert parse(text).inference == Stretch(7, 0.25, 0.25, 0.25, 0.0, 0.25, 0.25, 0.25)


def test_the_old_form_names_its_mean_otherwise():
    report = parse(TEXTS["old_average"])
    assert report.init_ms == 31.92
    assert inference("old_average").mean_ms == pytest.approx(66.4318)


def test_microseconds_are_preferred_to_rounded_milliseconds():
    assert inference("litert").mean_ms == 2.37815


def test_a_summary_in_milliseconds_is_enough():
    assert inference("litert_python") == Stretch(20, 3.77, 3.61, 5.02, 0.30, 3.62, 3.70, 4.15)


@pytest.mark.parametrize("name", sorted(TEXTS))
@pytest.mark.parametrize(
    "prefix", ["", "    ", "INFO: ", "I tflite  : ", "03-09 14:02:11.300  21  21 I tflite  : "]
)
def test_prefixes_and_line_ends_change_nothing(name, prefix):
    lines = TEXTS[name].splitlines()
    bare = [
        line if not line or line[:4] in ("INFO", "VERB", "ERRO", "03-0") else prefix + line for line in lines
    ]
    assert parse("\r\n".join(bare)) == parse(TEXTS[name])


@given(
    prefix=st.sampled_from(["", "INFO: ", "I/tflite ( 812): "]),
    values=st.lists(microseconds, min_size=3, max_size=3).map(sorted),
    runs=st.integers(2, 10**6),
    rest=st.tuples(microseconds, microseconds, microseconds),
)
def test_what_is_printed_is_read(prefix, values, runs, rest):
    low, middle, high = values
    mean, std, first = (float(f"{value:.6g}") for value in rest)
    text = (
        f"{prefix}count={runs} first={low} curr={high} min={low} max={high} avg={mean:.6g} std={std:.6g} "
        f"p5={low} median={middle} p95={high}\n\n"
        f"{prefix}Inference timings in us: Init: 1, First inference: {first:.6g}, Warmup (avg): 1, "
        f"Inference (avg): {mean:.6g}\n"
    )
    report = parse(text)
    assert report.inference is not None and report.first_ms is not None
    found = report.inference
    assert found.runs == runs
    pairs = ((found.min_ms, low), (found.median_ms, middle), (found.max_ms, high), (found.mean_ms, mean))
    assert all(ms is not None and math.isclose(ms * 1e3, us) for ms, us in (*pairs, (report.first_ms, first)))


@given(st.text())
def test_any_text_is_taken(text):
    assert parse(text).inference is None
    assert 0 < len(last_line(text)) <= 160


@pytest.mark.parametrize("number", ["9" * 5000, "1" * 20])
def test_numbers_no_count_can_have_are_not_read(number):
    text = re.sub(r"(?<=Replacing )\d+", number, TEXTS["partly_delegated"])
    assert number in text and parse(text).delegations == ()


@given(st.integers(0, 40))
def test_a_text_that_breaks_off_has_no_timings(kept):
    lines = TEXTS["percentiles"].splitlines()
    end = next(number for number, line in enumerate(lines) if "Inference timings" in line)
    assert parse("\n".join(lines[: min(kept, end)])).inference is None


@pytest.mark.parametrize(
    ("name", "said"),
    [("failed", "Node number 7 (CONV_2D) failed"), ("not_a_model", "not a valid Flatbuffer")],
)
def test_a_failure_is_told_by_its_most_telling_line(name, said):
    report = parse(TEXTS[name])
    assert report.inference is None
    assert report.failure is not None and said in report.failure


def test_a_failure_counts_even_after_timings():
    assert parse(TEXTS["percentiles"] + "ERROR: Benchmarking failed.\n").failure == "Benchmarking failed."


def test_errors_the_program_survived_are_no_failure():
    assert parse("ERROR: no GPU here\n" + TEXTS["percentiles"]).failure is None


def test_one_delegate_for_everything_needs_no_note():
    assert delegate_notes(parse(TEXTS["percentiles"])) == ()


def test_operators_left_outside_a_delegate_are_told():
    assert delegate_notes(parse(TEXTS["partly_delegated"])) == (
        "XNNPack runs 118 of 131 operators, in 9 parts",
    )
    assert delegate_notes(parse(TEXTS["not_delegated"])) == ("the delegate took no operator of this file",)


def test_the_table_of_operators_has_a_count_of_its_own():
    assert inference("operators").mean_ms == pytest.approx(3.0432)


def test_operators_sum_up_to_an_inference_in_their_order():
    operators = parse(TEXTS["operators"]).operators
    assert [one.kind for one in operators] == [
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "CONV_2D",
        "SOFTMAX",
        "RESHAPE",
    ]
    assert operators[1].name == "[net/second/Relu, net/second/Sum]:1"
    assert not any(one.delegated for one in operators)
    assert sum(one.mean_ms for one in operators) == pytest.approx(3.010)  # RESHAPE is called twice


def test_a_delegate_node_is_not_counted_besides_what_it_consists_of():
    operators = {one.kind: one for one in parse(TEXTS["operators_delegate"]).operators}
    assert "TfLiteXNNPackDelegate" not in operators and "AllocateTensors" not in operators
    assert operators["Convolution (NHWC, F32) GEMM"].delegated is True
    assert operators["SOFTMAX"].delegated is False
    assert operators["LiteRT::Run[buffer registration]"].delegated is None


def test_commas_in_names_do_not_shift_columns_of_csv():
    operators = parse(TEXTS["operators_csv"]).operators
    assert [one.mean_ms for one in operators] == [1.75, 0.4375, 0.00082]
    assert operators[1].kind == "Convolution (NHWC, F32) GEMM"
    assert operators[2].name == "[net/a, net/b]:2"


def test_the_command_names_all_that_decides_on_a_result():
    words = command(
        "/bin/b", "/m.tflite", threads=2, min_runs=30, min_seconds=0.5, warmup_seconds=0, max_seconds=100
    )
    assert words[0] == "/bin/b"
    wanted = {"--graph=/m.tflite", "--num_threads=2", "--num_runs=30", "--min_secs=0.5", "--use_xnnpack=true"}
    assert wanted <= set(words) and "--warmup_min_secs=0" in words
    assert not any("profiling" in word for word in words)
