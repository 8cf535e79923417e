"""`export`: what it writes for runs and model sources, and what `export.json` says of it."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
from test_report import text_of
from tiny_zoo import IMAGES, SHAPE, SIDE, entry, in_zoo, save_images
from typer.testing import CliRunner

import edgecompress
from edgecompress import export as exporting
from edgecompress.cli.main import app
from edgecompress.core.plugins import discover
from edgecompress.core.results import ExportResult
from edgecompress.core.store import read_record, sha256_of
from edgecompress.export.contract import Format
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.compress import compress
from edgecompress.pipeline.export import EXPORT_FILE, export
from edgecompress.pipeline.subject import CALIBRATION_IMAGES, PARITY_IMAGES

FORMATS = discover(exporting, Format)


@pytest.fixture(scope="module", autouse=True)
def zoo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("zoo")
    with in_zoo(entry("tiny", directory), entry("bare", directory, images=False)):
        yield


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    compress("zoo:tiny", budget="macs=60%", runs_dir=directory, name="mine")
    return directory


@pytest.fixture(scope="module")
def exported(runs_dir) -> ExportResult:
    """A run in all formats and precisions."""
    precisions = ("fp16", "int8", "fp16", "fp32")
    return export("mine", runs_dir=runs_dir, precisions=precisions, converter="litert-torch")


def files_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def noise(count: int) -> torch.Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


# A run


def test_a_run_gives_its_two_networks_in_all_formats_and_precisions(exported, runs_dir):
    names = {
        f"{network}{precision}{format.suffix}"
        for network in ("dense", "compressed")
        for precision in ("", ".fp16", ".int8")
        for format in FORMATS.values()
    }
    assert exported.directory == str(runs_dir / "mine" / "exports")
    assert {one.file for one in exported.files} == names and len(exported.files) == len(names)
    assert files_in(Path(exported.directory)) == names | {EXPORT_FILE}


def test_every_file_is_described_as_it_is(exported):
    for one in exported.files:
        file, format = Path(exported.directory) / one.file, FORMATS[one.format]
        assert one.sha256 == sha256_of(file) and one.size_bytes == file.stat().st_size
        assert one.parity.file == one.file and one.parity.format == one.format
        assert one.graph == format.inspect(file) and one.layout == format.layout
        assert one.converter == {"onnx": "torch", "tflite": "litert-torch"}[one.format]
        assert file.name.startswith(one.network) and one.seconds > 0


def test_every_float_file_computes_what_its_network_computes(exported, runs_dir):
    networks = {
        "dense": load_model("zoo:tiny").module,
        "compressed": edgecompress.load(runs_dir / "mine"),
    }
    with torch.inference_mode():
        expected = {name: network(noise(5)) for name, network in networks.items()}
    assert (expected["dense"] - expected["compressed"]).abs().max() > 1e-3
    for one in exported.files:
        if one.precision == "fp32":
            found = FORMATS[one.format].run(Path(exported.directory) / one.file, noise(5))
            torch.testing.assert_close(found, expected[one.network], rtol=1e-4, atol=1e-4)


def test_the_record_says_on_which_images_and_is_the_file_beside(exported):
    assert read_record(Path(exported.directory) / EXPORT_FILE, ExportResult) == exported
    assert {one.parity.images for one in exported.files} == {PARITY_IMAGES}
    assert exported.parity_images.startswith(f"{PARITY_IMAGES} images of ")
    assert exported.calibration_images.startswith(f"{CALIBRATION_IMAGES} images of ")
    assert exported.model.source == "zoo:tiny" and {"torch", "onnx"} <= exported.versions.keys()


def test_without_a_name_the_latest_run_is_meant(runs_dir, tmp_path):
    result = export(runs_dir=runs_dir, formats=("onnx",), dense=False, output=tmp_path / "here")
    assert [one.file for one in result.files] == ["compressed.onnx"]
    assert files_in(tmp_path / "here") == {"compressed.onnx", EXPORT_FILE}


# A model source


def test_a_model_source_goes_to_a_directory_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = export("zoo:tiny", formats=("onnx",), images=7)
    assert result.directory == "exports/tiny" and [one.file for one in result.files] == ["tiny.onnx"]
    assert result.files[0].network == "tiny" and result.files[0].parity.images == 7
    assert files_in(tmp_path / "exports" / "tiny") == {"tiny.onnx", EXPORT_FILE}


def test_a_second_export_adds_to_the_first(tmp_path):
    def again(**options) -> list[str]:
        result = export("zoo:tiny", output=tmp_path, images=5, **options)
        record = read_record(tmp_path / EXPORT_FILE, ExportResult)
        assert all(one in record.files for one in result.files)
        return [one.file for one in record.files]

    assert again(formats=("onnx",), precisions=("int8",)) == ["tiny.onnx", "tiny.int8.onnx"]
    assert again(formats=("onnx",)) == ["tiny.int8.onnx", "tiny.onnx"]
    kept = read_record(tmp_path / EXPORT_FILE, ExportResult)
    assert kept.calibration_images, "an int8 file that stays keeps its calibration images"
    (tmp_path / "tiny.int8.onnx").write_bytes(b"another file")
    assert again(formats=("onnx",)) == ["tiny.onnx"], "what changed since is not vouched for"
    (tmp_path / EXPORT_FILE).write_text("{}")
    assert again(formats=("onnx",)) == ["tiny.onnx"]


def test_files_of_another_model_are_not_taken_over(tmp_path):
    for model in ("zoo:tiny", "zoo:bare"):
        export(model, formats=("onnx",), output=tmp_path, images=5)
    record = read_record(tmp_path / EXPORT_FILE, ExportResult)
    assert [one.file for one in record.files] == ["bare.onnx"]
    assert files_in(tmp_path) == {"tiny.onnx", "bare.onnx", EXPORT_FILE}


def test_onnx_for_any_number_of_images_takes_one_and_five(tmp_path):
    result = export("zoo:tiny", formats=("onnx",), dynamic_batch=True, output=tmp_path)
    assert result.files[0].graph.input_shape == (0, 1, SIDE, SIDE)
    session = onnxruntime.InferenceSession(tmp_path / "tiny.onnx")
    network = load_model("zoo:tiny").module
    for count in (1, 5):
        (found,) = session.run(None, {"image": noise(count).numpy()})
        with torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(found), network(noise(count)), rtol=1e-4, atol=1e-4)


# Images


def test_images_without_labels_are_enough(tmp_path):
    data = save_images(tmp_path / "plain.npz", labels=False, count=50)
    result = export("zoo:bare", formats=("onnx",), precisions=("int8",), data=str(data), output=tmp_path)
    assert result.calibration_images == f"20 images of {data}"
    assert result.parity_images == f"20 images of {data}"


@pytest.mark.parametrize("labels", [True, False])
def test_other_images_to_compare_on_are_used_as_asked(labels, tmp_path):
    data = save_images(tmp_path / "data.npz", labels=False, count=10)
    other = save_images(tmp_path / "other.npz", labels=labels, count=IMAGES)
    result = export(
        "zoo:bare", formats=("onnx",), data=str(data), report_data=str(other), output=tmp_path, images=30
    )
    assert result.parity_images == f"30 images of {other}" and result.calibration_images is None


def test_without_images_noise_is_compared_on_and_said_to_be(tmp_path):
    result = export("zoo:bare", formats=("onnx",), output=tmp_path)
    assert "noise" in result.parity_images and result.files[0].parity.images == PARITY_IMAGES


def test_random_weights_are_said_and_weights_of_the_zoo_are_not(tmp_path):
    code = "from torch import nn\n\ndef model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))\n"
    (tmp_path / "net.py").write_text(code)
    own = {"formats": ("onnx",), "input_size": (8, 8), "output": tmp_path / "a"}
    result = export(f"{tmp_path / 'net.py'}", **own)
    assert "random" in result.warnings[0] and "--weights" in text_of(result)
    assert read_record(tmp_path / "a" / EXPORT_FILE, ExportResult).warnings == result.warnings
    assert export("zoo:tiny", formats=("onnx",), output=tmp_path / "b").warnings == ()


# The command


def test_the_command_prints_the_record_or_a_table(tmp_path):
    arguments = ["export", "zoo:tiny", "--onnx", "--fp16", "--images", "5", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert [one.file for one in ExportResult.model_validate_json(done.stdout).files] == [
        "tiny.onnx",
        "tiny.fp16.onnx",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    for part in ("tiny.onnx", "tiny.fp16.onnx", "NCHW", "1x1x8x8", "export.json"):
        assert part in done.stdout.replace(" x ", "x")
