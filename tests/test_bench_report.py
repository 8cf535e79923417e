"""What a terminal shows of measurements."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_benches import MACHINE, ORT, PHONE, bench_of, measurement, operators, result_of, steady
from rich.console import Console

from edgecompress.core.measurement import Validity
from edgecompress.core.statistics import compare, summarise
from edgecompress.report.benches import ms
from edgecompress.report.text import render

LONG_NAME = "runs/compress-efficientnet_lite0-001/exports/compressed.int8.per_channel.tflite"
BUSY = "other programs had the core 58.5 % of the time (at most 20 %)"
HOT = "thermal status rose from 0 to 3"
NOT_VALID = Validity(valid=False, reasons=(BUSY, "12 of 30 bursts lie far from the others"))
ON_PHONE = [
    measurement(name, median_ms, conditions=PHONE, raw=False)
    for name, median_ms in (("dense.tflite", 12.3), ("compressed.tflite", 8.2))
]
TWO_PHONES = result_of(
    bench_of(*ON_PHONE, device="0123ABCD"),
    bench_of(
        ON_PHONE[0],
        ON_PHONE[1].model_copy(update={"validity": Validity(valid=False, reasons=(HOT,))}),
        device="192.168.178.105:5555",
    ),
    earlier=(compare(steady(5), steady(4), names=("a before on 0123ABCD", "a on 0123ABCD"), paired=False),),
)
TWO_RUNTIMES = result_of(
    bench_of(
        measurement("dense.tflite", 12.3, validity=NOT_VALID, notes=("not run by XNNPACK: 1 CUMSUM",)),
        measurement(LONG_NAME, 0.0081, validity=NOT_VALID),
        measurement("dense.onnx", 1500, conditions=ORT, operators=operators(14)),
    ),
    written="runs/compress-efficientnet_lite0-001/bench-local.json",
)
ONE_FILE = result_of(bench_of(measurement("a.tflite", 1.0)))


def text_of(result, width=80):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(render(result))
    return out.getvalue()


def rows_of(text):
    """Returns the cells of every line by the first of them."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


@pytest.mark.parametrize("result", [TWO_PHONES, TWO_RUNTIMES, ONE_FILE], ids=["phones", "runtimes", "one"])
def test_reports_fit_80_columns_and_cut_nothing_off(result):
    text = text_of(result)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_a_folded_file_name_is_still_whole():
    lines = text_of(TWO_RUNTIMES).splitlines()
    width = next(line for line in lines if line.startswith("file ")).index("runtime")
    assert LONG_NAME in "".join(line[:width].strip() for line in lines)


def test_a_file_has_its_median_interval_and_p90():
    assert rows_of(text_of(ONE_FILE))["a.tflite"] == ["1.002", "1.000", "-", "1.003", "1.003"]


def test_the_runtime_is_a_column_only_where_there_are_several():
    assert "runtime" in text_of(TWO_RUNTIMES)
    assert "runtime" not in text_of(ONE_FILE)


def test_every_comparison_is_a_sentence_under_its_baseline():
    text = " ".join(text_of(TWO_PHONES, width=120).split())
    for bench in TWO_PHONES.benches:
        (one,) = bench.comparisons
        assert f"against dense.tflite compressed.tflite {one.statement}" in text
    assert "against" not in text_of(ONE_FILE)


def test_files_of_two_formats_stand_under_their_own_baselines():
    tflite, onnx = (
        bench_of(*(measurement(f"{name}.{kind}", value) for name, value in (("dense", 2), ("compressed", 1))))
        for kind in ("tflite", "onnx")
    )
    both = tflite.model_copy(
        update={
            "measurements": tflite.measurements + onnx.measurements,
            "comparisons": tflite.comparisons + onnx.comparisons,
        }
    )
    lines = [line.strip() for line in text_of(result_of(both)).splitlines()]
    for kind in ("tflite", "onnx"):
        heading = lines.index(f"against dense.{kind}")
        assert lines[heading + 1].startswith(f"compressed.{kind} ")


def test_every_device_has_its_part():
    text = text_of(TWO_PHONES)
    first, second = text.index("0123ABCD, Pixel 4"), text.index("192.168.178.105:5555, Pixel 4")
    assert first < second < text.index(HOT)


def test_what_is_wrong_with_one_file_stands_beside_its_name():
    rows = rows_of(text_of(TWO_PHONES).partition("192.168")[2].partition("remarks")[2])
    assert " ".join(rows["compressed.tflite"]) == f"not valid; {HOT}"
    assert "not valid" not in text_of(TWO_PHONES).partition("192.168")[0]


def test_what_is_wrong_with_all_files_is_said_once():
    files = [measurement(name, 1.0, validity=NOT_VALID) for name in ("a.tflite", "b.tflite")]
    text = " ".join(text_of(result_of(bench_of(*files))).split())
    assert text.count("not valid") == text.count(BUSY) == 1
    assert f"all files not valid; {BUSY}" in text


def test_notes_of_the_runtime_are_shown_for_valid_files_too():
    file = measurement("a.tflite", 1.0, notes=("XNNPack runs 118 of 131 operators, in 9 parts",))
    text = text_of(result_of(bench_of(file)))
    assert "a.tflite  XNNPack runs 118 of 131 operators, in 9 parts" in text
    assert "not valid" not in text


def test_how_it_was_measured_is_told():
    text = text_of(TWO_RUNTIMES)
    for part in (
        "8 rounds, 24 runs per file",
        "1 thread on core 7",
        "measured with litert 2.3.0",
        "measured with onnxruntime 1.31.1",
        "written to runs/compress-efficientnet_lite0-001/bench-local.json",
    ):
        assert part in text
    free = MACHINE.model_copy(update={"threads": 4, "cores": (), "governor": "schedutil"})
    text = text_of(result_of(bench_of(measurement("a.tflite", 1.0, conditions=free))))
    assert "4 threads not pinned to a core, governor schedutil" in text


def test_the_score_of_mlperf_is_never_a_median_in_disguise():
    known = result_of(bench_of(measurement("a.tflite", 1.0)), preset="mlperf", score="p90")
    unknown = result_of(bench_of(*ON_PHONE), preset="mlperf", score="p90")
    assert "the score of this preset is p90\n" in text_of(known)
    assert "p90, which this runtime does not report" in text_of(unknown)
    assert "median ms" in text_of(unknown)


def test_a_mean_is_called_a_mean():
    old = measurement("a.tflite", 1.0, conditions=PHONE, raw=False, mean_only=True)
    text = text_of(result_of(bench_of(old)))
    assert "mean ms" in text
    assert "median" not in text


def test_an_emulator_is_called_one():
    emulated = PHONE.model_copy(update={"provenance": "emulated"})
    text = text_of(result_of(bench_of(measurement("a.tflite", 1.0, conditions=emulated))))
    assert "emulated: never quote these times as measured on a real device" in text
    assert "emulated" not in text_of(TWO_PHONES)


def test_what_was_counted_and_not_timed_has_no_interval():
    emulated = PHONE.model_copy(update={"provenance": "emulated", "device": "emulated Cortex-A76"})
    files = [counted("dense.tflite", 12.0, emulated), counted("compressed.tflite", 8.0, emulated)]
    text = text_of(result_of(bench_of(*files), preset="mlperf", score="p90"))
    rows = rows_of(text.partition("against")[0])
    assert rows["dense.tflite"] == ["12.00"]
    assert "1.500x faster (exact)" in text
    assert "modelled" in text
    for part in ("interval", "median", "p90", "rounds", "interleaved"):
        assert part not in text


def counted(name, value, conditions):
    """Returns a file with one exact burst, as an emulated core has."""
    exact = tuple(one.model_copy(update={"exact": True}) for one in steady(value, rounds=1))
    return measurement(name, value, conditions=conditions, bursts=exact, summary=summarise(exact))


def test_the_slowest_operators_come_first_and_the_rest_is_summed_up():
    text = text_of(TWO_RUNTIMES, width=160).partition("where the time goes")[2]
    shares = [float(line.split()[-2]) for line in text.splitlines() if line.endswith("%")]
    assert shares[:10] == sorted(shares[:10], reverse=True)
    assert sum(shares) == pytest.approx(100, abs=1)
    assert "4 others" in text


def test_an_earlier_result_is_compared_at_the_end():
    text = text_of(TWO_PHONES)
    assert text.index("against the earlier result (not interleaved, so drift counts)") > text.rindex("rounds")
    assert f"a on 0123ABCD  {TWO_PHONES.earlier[0].statement}" in text


@given(st.floats(1e-4, 1e5))
def test_milliseconds_keep_four_figures(value):
    assert float(ms(value)) == pytest.approx(value, rel=5.1e-4)
    assert "e" not in ms(value)


def test_no_time_at_all_is_shown_as_such():
    assert ms(0.0) == "0"
