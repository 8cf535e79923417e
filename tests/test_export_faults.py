"""`export`: what is refused, in one line and before the long work; and no wrong file is ever kept."""

from __future__ import annotations

import dataclasses
import os
from importlib import metadata
from pathlib import Path

import pytest
import torch
from export_nets import check_one_line
from tiny_zoo import TinyNet, entry, in_zoo, save_weights
from torch import nn

from edgecompress import export as exporting
from edgecompress.core.plugins import discover
from edgecompress.core.presets import PRESETS
from edgecompress.errors import (
    ArtefactError,
    ConfigError,
    DataError,
    EdgeCompressError,
    ExportError,
    MissingPackage,
)
from edgecompress.export import tflite_litert_torch, tflite_onnx2tf, to_onnx
from edgecompress.export.contract import Format
from edgecompress.nets.sources import zoo_entries
from edgecompress.pipeline.compress import compress
from edgecompress.pipeline.conversion import usable_converters
from edgecompress.pipeline.export import EXPORT_FILE, export

TFLITE = discover(exporting, Format)["tflite"]
to_tflite = tflite_litert_torch.convert


@pytest.fixture(scope="module", autouse=True)
def zoo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("zoo")
    with in_zoo(entry("tiny", directory), entry("bare", directory, images=False)):
        yield


@pytest.fixture
def no_work(monkeypatch) -> None:
    """Fails the test when something is converted."""
    for module in (to_onnx, tflite_litert_torch, tflite_onnx2tf):
        idle = dataclasses.replace(module.CONVERTER, convert=lambda *_: pytest.fail("work was done"))
        monkeypatch.setattr(module, "CONVERTER", idle)


def fails(kind: type[EdgeCompressError], *parts: str, model: str = "zoo:tiny", **options) -> None:
    with pytest.raises(kind) as error:
        export(model, **options)
    check_one_line(error, *parts)


# Options


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"converter": "toco"}, ("'toco'", "known are: litert-torch, onnx2tf")),
        ({"converter": "toco", "formats": ("onnx",)}, ("'toco'", "known are: litert-torch, onnx2tf")),
        ({"converter": "torch", "formats": ("tflite",)}, ("'torch'", "known are: litert-torch, onnx2tf")),
        ({"formats": ("coreml",)}, ("'coreml'", "known are: onnx, tflite")),
        ({"formats": ()}, ("no format", "onnx, tflite")),
        ({"precisions": ("int4",)}, ("'int4'", "fp32, fp16, int8")),
        ({"dynamic_batch": True}, ("--dynamic-batch", "--onnx")),
        ({"dynamic_batch": True, "formats": ("tflite",)}, ("--dynamic-batch", "--onnx")),
        (
            {"dynamic_batch": True, "formats": ("onnx",), "precisions": ("int8",)},
            ("--dynamic-batch", "--int8"),
        ),
        ({"images": 0}, ("0 images to compare on",)),
        ({"calibration_images": 0, "precisions": ("int8",)}, ("0 calibration images",)),
        ({"model": "zoo:bare", "precisions": ("int8",)}, ("zoo:bare", "int8", "--data")),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_done(options, parts, tmp_path):
    fails(ConfigError, *parts, output=tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_work")
def test_too_few_images_are_refused_before_anything_is_done(tmp_path):
    fails(DataError, "1100 images", images=2000, output=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_work")
def test_what_is_no_run_is_refused(tmp_path):
    fails(ArtefactError, "holds no plan.json", model=str(tmp_path))
    fails(ArtefactError, "holds no run", model=None, runs_dir=tmp_path)
    said = ("no-such-run: there is no such run in", "models have a prefix")
    fails(ArtefactError, *said, model="no-such-run", runs_dir=tmp_path)
    fails(ConfigError, "hub:resnet20: prefix", model="hub:resnet20", runs_dir=tmp_path)


@pytest.mark.usefixtures("no_work")
def test_a_file_in_the_way_is_found_before_the_long_work(tmp_path):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "deeper"):
        fails(ArtefactError, str(output), "--output", output=output)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
@pytest.mark.usefixtures("no_work")
def test_a_read_only_directory_is_found_before_the_long_work(tmp_path):
    tmp_path.chmod(0o555)
    fails(ArtefactError, str(tmp_path / "out"), "--output", output=tmp_path / "out")


# Packages


def without(monkeypatch, *lacking: str) -> None:
    """Makes distributions look as if they were not installed."""
    real = metadata.version

    def version(name: str) -> str:
        if name in lacking:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)


def test_auto_passes_over_converters_that_are_not_installed(monkeypatch):
    assert {one.name for one in usable_converters(TFLITE, "auto")} == {"litert-torch", "onnx2tf"}
    without(monkeypatch, "litert-torch")
    assert {one.name for one in usable_converters(TFLITE, "auto")} == {"onnx2tf"}


@pytest.mark.usefixtures("no_work")
def test_a_converter_that_is_not_installed_says_what_it_needs(monkeypatch, tmp_path):
    without(monkeypatch, "litert-torch", "tensorflow")
    fails(MissingPackage, "onnx2tf needs tensorflow", "pip", converter="onnx2tf", output=tmp_path / "out")
    fails(MissingPackage, "tensorflow", "litert-torch", "pip", converter="auto", output=tmp_path / "out")
    assert not list(tmp_path.iterdir())


# The dense network of a run


@pytest.fixture(scope="module")
def changing(tmp_path_factory) -> Path:
    """A run whose dense network has other weights now."""
    directory = tmp_path_factory.mktemp("changing")
    with in_zoo(entry("changing", directory)):
        run = compress("zoo:changing", budget="macs=60%", runs_dir=directory, name="run").run
        save_weights(directory / "changing.safetensors", TinyNet(), seed=1)
        yield Path(run)


def test_dense_weights_that_changed_are_told_and_can_be_left_out(changing):
    fails(ArtefactError, "zoo:changing", "changed", "--no-dense", model=str(changing))
    assert not (changing / "exports").exists()
    result = export(str(changing), formats=("onnx",), dense=False)
    assert [one.file for one in result.files] == ["compressed.onnx"]
    assert "changing.npz" in result.parity_images


def test_dense_weights_that_are_gone_are_told_and_can_be_left_out(changing, monkeypatch):
    gone = dataclasses.replace(zoo_entries()["changing"], weights=lambda: changing / "gone.safetensors")
    monkeypatch.setitem(zoo_entries(), "changing", gone)
    fails(EdgeCompressError, "gone.safetensors", "--no-dense", model=str(changing))
    assert export(str(changing), formats=("onnx",), dense=False).files


# Files that are not faithful


class Worked(nn.Module):
    """Computes what a network computes, with much work that comes to nothing."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = network
        self.work = nn.Sequential(nn.Conv2d(1, 48, 1), *(nn.Conv2d(48, 48, 3, padding=1) for _ in range(8)))
        self.eval()

    def forward(self, x):
        return self.network(x) + 1e-9 * self.work(x).mean((1, 2, 3))[:, None]


def other_network(network: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return TinyNet().eval()


def hard_worked(network: nn.Module) -> nn.Module:
    return Worked(network)


def as_is(network: nn.Module) -> nn.Module:
    return network


def replaced(monkeypatch, module, change) -> None:
    """Makes a converter write another network than the one it is given."""
    fake = dataclasses.replace(
        module.CONVERTER, convert=lambda network, shape, path, _: to_tflite(change(network), shape, path)
    )
    monkeypatch.setattr(module, "CONVERTER", fake)


def test_an_impossible_limit_is_an_error_and_nothing_is_written(tmp_path):
    fails(ExportError, "tiny.onnx", "0.0e+00 is allowed", formats=("onnx",), atol=0.0, output=tmp_path / "a")
    fails(
        ExportError,
        "tiny.int8.onnx",
        "--min-agreement",
        formats=("onnx",),
        precisions=("int8",),
        min_agreement=1.1,
        output=tmp_path / "a" / "b",
    )
    assert not list(tmp_path.iterdir())


def test_a_wrong_conversion_is_never_kept(monkeypatch, tmp_path):
    replaced(monkeypatch, tflite_onnx2tf, other_network)
    fails(
        ExportError,
        "tiny.tflite",
        "not faithful",
        formats=("onnx", "tflite"),
        converter="onnx2tf",
        output=tmp_path / "out",
    )
    assert not list(tmp_path.iterdir())
    result = export("zoo:tiny", formats=("tflite",), output=tmp_path / "out")
    (one,) = result.files
    assert one.converter == "litert-torch" and one.parity.top1_agreement == 1
    (note,) = one.notes
    assert "onnx2tf" in note and "not faithful" in note and "\n" not in note


def test_where_no_converter_is_right_both_reasons_are_given(monkeypatch, tmp_path):
    for module in (tflite_onnx2tf, tflite_litert_torch):
        replaced(monkeypatch, module, other_network)
    fails(ExportError, "onnx2tf: ", "litert-torch: ", formats=("tflite",), output=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("slow", "quick"), [("litert-torch", "onnx2tf"), ("onnx2tf", "litert-torch")])
def test_of_two_right_files_the_faster_one_is_kept(slow, quick, monkeypatch, tmp_path):
    brief = dataclasses.replace(PRESETS["quick"], min_seconds=0.2, rounds=20, warmup_seconds=0.05)
    monkeypatch.setitem(PRESETS, "quick", brief)
    for module in (tflite_onnx2tf, tflite_litert_torch):
        replaced(monkeypatch, module, hard_worked if module.CONVERTER.name == slow else as_is)
    (one,) = export("zoo:tiny", formats=("tflite",), output=tmp_path).files
    assert one.converter == quick and "CONV_2D" in one.graph.operators
    assert sum(one.graph.operators.values()) < 10
    assert any(note.startswith(f"chosen over {slow}: ") for note in one.notes)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.tflite", EXPORT_FILE}
