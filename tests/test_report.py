import importlib
import io
import re
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_benches import bench_of, measurement, result_of
from rich.console import Console

from edgecompress.core.loop_results import QuickstartResult
from edgecompress.core.prune_results import PrunedGroup, PruneResult
from edgecompress.core.results import (
    CompressResult,
    DoctorItem,
    DoctorResult,
    ExportedFile,
    ExportResult,
    GraphFacts,
    InspectResult,
    LayerChange,
    LayerCost,
    ListItem,
    ListResult,
    ModelSummary,
    ParityResult,
    SplitSummary,
)
from edgecompress.core.search_results import SearchResult
from edgecompress.core.types import Accuracy, ModelRef, Plan, Preprocess, Record
from edgecompress.report.numbers import change, count, megabytes, shape, share
from edgecompress.report.text import RENDERERS, render

LONG_NAME = "features.17.block.3.inverted_bottleneck.pointwise_projection"
MODEL = ModelRef(source="torchvision:mobilenet_v2", preprocess=Preprocess(size=(224, 224)))
INSPECT = InspectResult(
    model=MODEL,
    params=3_504_872,
    macs=300_774_272,
    weight_bytes=14_019_488,
    layers=(
        LayerCost(
            name=LONG_NAME,
            kind="conv2d",
            params=307_200,
            macs=15_052_800,
            weight_bytes=1_228_800,
            activation_bytes=62_720,
            in_shape=(960, 7, 7),
            out_shape=(320, 7, 7),
            detail="1x1",
        ),
        LayerCost(
            name="classifier.1",
            kind="linear",
            params=1_281_000,
            macs=1_280_000,
            weight_bytes=5_124_000,
            activation_bytes=4_000,
            in_shape=(1280,),
            out_shape=(1000,),
        ),
    ),
    targets=(LONG_NAME,),
    skipped=(("features.1.conv.0.0", "grouped convolution"),),
)
COMPRESS = CompressResult(
    run="runs/compress-mobilenet_v2-001",
    plan=Plan(model=MODEL, skipped=(("features.1.conv.0.0", "grouped convolution"),)),
    dense=ModelSummary(
        params=3_504_872,
        macs=300_774_272,
        weight_bytes=14_019_488,
        accuracy=Accuracy(top1=71.88, top5=90.3, images=500),
    ),
    compressed=ModelSummary(
        params=1_752_436,
        macs=150_387_136,
        weight_bytes=7_009_744,
        accuracy=Accuracy(top1=70.5, top5=89.1, images=500),
    ),
    layers=(
        LayerChange(
            name=LONG_NAME,
            in_size=(7, 7),
            family="S4(8)+S3",
            ranks=(12, 108),
            params_before=307_200,
            params_after=30_720,
            macs_before=15_052_800,
            macs_after=1_505_280,
        ),
    ),
    split=SplitSummary(source="photos", calibration=512, selection=256, report=500, seed=7, sha256="ab" * 32),
    steps=(("local search", "kept, loss 0.31 to 0.29"),),
    seconds={"calibration": 12.5, "search": 3.25},
)
PRUNE = PruneResult(
    run=COMPRESS.run,
    plan=COMPRESS.plan,
    scores="reconstruction",
    scope="per_type",
    dense=COMPRESS.dense,
    compressed=COMPRESS.compressed,
    groups=(
        PrunedGroup(name="features.1.conv.0.0", kind="channels", before=64, after=16),
        PrunedGroup(name=LONG_NAME, kind="channels", before=96, after=96),
        PrunedGroup(name="mlp.0", kind="hidden", before=192, after=96),
    ),
    refused=tuple((f"{LONG_NAME}.{number}", "is joined to others by a sum") for number in range(5)),
    split=COMPRESS.split,
    steps=(("refit", "kept, divergence 0.31 to 0.29"),),
    seconds=COMPRESS.seconds,
)
PARITY = ParityResult(
    file="", format="tflite", images=200, max_abs_diff=2.4e-6, max_rel_diff=1.3e-6, top1_agreement=0.995
)
GRAPH = GraphFacts(
    operators={"CONV_2D": 53, "TRANSPOSE": 2},
    transposes=2,
    outside_delegate={"CUMSUM": 1},
    input_shape=(1, 224, 224, 3),
    input_type="float32",
)


def exported(file, *, network, precision, notes=()):
    return ExportedFile(
        file=file,
        network=network,
        format="tflite",
        precision=precision,
        converter="onnx2tf",
        layout="NHWC",
        size_bytes=14_019_488,
        sha256="cd" * 32,
        parity=PARITY.model_copy(update={"file": file}),
        graph=GRAPH,
        notes=notes,
        seconds=12.5,
    )


EXPORT = ExportResult(
    directory="runs/compress-mobilenet_v2-001/exports",
    model=MODEL,
    files=(
        exported("dense.tflite", network="dense", precision="fp32", notes=("litert-torch: 1.2x slower",)),
        exported("compressed.int8.tflite", network="compressed", precision="int8"),
    ),
    parity_images="200 images of photos",
    calibration_images="256 images of photos",
    versions={},
)
SEARCH = SearchResult(
    run=COMPRESS.run,
    search="hybrid",
    metric="macs",
    target=160e6,
    dense_cost=300_774_272,
    cost=158e6,
    met=True,
    reason=None,
    plan=COMPRESS.plan,
    dense=COMPRESS.dense,
    compressed=COMPRESS.compressed,
    layers=COMPRESS.layers,
    latency=None,
    front=(),
    front_shown=False,
    slower=(),
    split=COMPRESS.split,
    steps=COMPRESS.steps,
    seconds={**COMPRESS.seconds, "all": 15.75},
)
BENCH = result_of(bench_of(measurement("dense.tflite", 2.0), measurement("compressed.tflite", 1.25)))
QUICKSTART = QuickstartResult(search=SEARCH, export=EXPORT, bench=BENCH, seconds=93.2)
DOCTOR = DoctorResult(
    items=(
        DoctorItem(
            name="torch", needed_for="everything", found="2.13.0", how="pip install torch", required=True
        ),
        DoctorItem(name="onnx", needed_for="export", found=None, how="pip install onnx", required=True),
        DoctorItem(name="adb", needed_for="phones", found=None, how="apt-get install adb", required=False),
    )
)
LIST = ListResult(kind="methods", items=(ListItem(name="lowrank", summary="two factors for one layer"),))


def text_of(result, width=80):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(render(result))
    return out.getvalue()


@pytest.mark.parametrize(
    "result", [INSPECT, COMPRESS, PRUNE, EXPORT, QUICKSTART, DOCTOR, LIST], ids=lambda r: type(r).__name__
)
def test_reports_fit_80_columns_and_cut_nothing_off(result):
    text = text_of(result)
    assert text.strip()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_inspect_shows_every_layer_its_share_and_the_totals():
    text = text_of(INSPECT, width=140)
    for part in (LONG_NAME + "*", "conv2d 1x1", "960x7x7", "320x7x7", "307.2 k", "15.05 M", "5.0 %"):
        assert part in text
    assert "3.505 M parameters, 300.8 M MACs, 14.02 MB" in text
    assert "classifier.1*" not in text
    assert "left alone: features.1.conv.0.0: grouped convolution" in text


def test_a_folded_layer_name_is_still_whole():
    lines = text_of(INSPECT).splitlines()
    width = next(line for line in lines if line.startswith("layer")).index("kind")
    first_column = "".join(line[:width].strip() for line in lines)
    assert LONG_NAME + "*" in first_column


def test_compress_shows_before_after_and_change():
    rows = {line.split()[0]: line for line in text_of(COMPRESS).splitlines() if line.strip()}
    assert rows["top-1"].split()[2:] == ["71.88", "70.50", "-1.38", "pp"]
    assert rows["parameters"].split()[1:] == ["3.505", "M", "1.752", "M", "-50.0", "%"]
    assert rows["MACs"].split()[-2:] == ["-50.0", "%"]
    assert rows["weights"].split()[1:] == ["14.02", "MB", "7.01", "MB", "-50.0", "%"]


def test_compress_shows_layers_splits_steps_skips_times_and_the_run():
    text = text_of(COMPRESS, width=140)
    for part in (
        "S4(8)+S3",
        "12,108",
        "-90.0 %",
        "512 calibration, 256 selection, 500 report",
        "local search: kept",
        "left alone: features.1.conv.0.0",
        "15.8 in all",
        "runs/compress-mobilenet_v2-001",
    ):
        assert part in text


def test_without_images_there_is_no_accuracy_and_no_split():
    without = ModelSummary(params=1, macs=1, weight_bytes=4)
    text = text_of(COMPRESS.model_copy(update={"dense": without, "compressed": without, "split": None}))
    assert "top-1" not in text
    assert "calibration," not in text


def test_prune_shows_what_each_kind_kept_and_each_reason_once():
    shown = " ".join(text_of(PRUNE).split())
    assert "channels 2 160 112 25.0 % 70.0 % 100.0 %" in shown
    assert "hidden units 1 192 96 50.0 % 50.0 % 50.0 %" in shown
    assert shown.count("is joined to others by a sum") == 1 and "and 2 more" in shown
    assert "refit: kept" in shown and f"edgecompress export {PRUNE.run}" in shown


def test_quickstart_shows_how_the_exported_files_agree():
    text = text_of(QUICKSTART)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if "onnx2tf" in line}
    for name in ("dense.tflite", "compressed.int8.tflite"):
        assert rows[name][1:] == ["onnx2tf", "14.02", "MB", "99.5", "%", "1.3e-06", "55", "2"]
    assert "93 s in all" in text


def test_quickstart_says_what_this_machine_measured_and_what_to_do_next():
    text = " ".join(text_of(QUICKSTART).split())
    assert f"edgecompress bench {COMPRESS.run}" in text
    assert re.search(r"compressed.tflite 1.60*x faster", text)


def test_export_shows_what_the_files_take_and_what_runs_slowly():
    text = text_of(EXPORT, width=140)
    for part in (
        "tflite files take one image as NHWC, 1x224x224x3 in float32",
        "compared on 200 images of photos",
        "int8 calibrated on 256 images of photos",
        "dense.tflite: outside XNNPACK: 1 CUMSUM",
        "dense.tflite: litert-torch: 1.2x slower",
        f"written to {EXPORT.directory}",
    ):
        assert part in text


def test_doctor_says_how_to_get_what_is_missing_and_only_that():
    text = text_of(DOCTOR)
    assert "onnx (required): pip install onnx" in text
    assert "adb: apt-get install adb" in text
    assert "pip install torch" not in text


def test_markup_in_names_is_shown_as_it_is():
    item = ListItem(name="[bold]odd[/bold]", summary="[link] of the user")
    assert "[bold]odd[/bold]" in text_of(ListResult(kind="data", items=(item,)))


@given(st.integers(0, 10**13))
def test_a_count_is_short_and_keeps_four_figures(value):
    text = count(value)
    number, _, unit = text.partition(" ")
    back = float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]
    assert abs(back - value) <= 0.0005 * value
    assert len(text) <= 9


@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_a_change_always_has_a_sign(before, after):
    text = change(before, after)
    assert text.startswith("-" if after < before and text != "+0.0 %" else "+")
    assert text != "-0.0 %"
    assert float(text.removesuffix(" %")) == pytest.approx(
        100 * (after - before) / before, rel=1e-9, abs=0.051
    )


def test_figures_without_a_base_are_left_empty():
    assert change(0, 3) == share(3, 0) == ""


def test_sizes_and_shapes_read_as_people_write_them():
    assert megabytes(14_019_488) == "14.02 MB"
    assert shape((3, 224, 224)) == "3x224x224"


# Every record


@pytest.mark.parametrize(("record", "place"), RENDERERS.items(), ids=RENDERERS)
def test_every_record_has_a_function_that_takes_it(record, place):
    module, _, function = place.partition(":")
    show = getattr(importlib.import_module(f"edgecompress.report.{module}"), function)
    taken, *_ = (kind for name, kind in typing.get_type_hints(show).items() if name != "return")
    assert taken.__name__ == record and issubclass(taken, Record)


def test_every_result_of_a_command_is_shown():
    records = [*Record.__subclasses__()]
    for one in records:
        records += one.__subclasses__()
    results = {one.__name__ for one in records if one.__name__.endswith("Result")}
    assert results - {"ParityResult"} <= {*RENDERERS}
