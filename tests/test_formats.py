"""Every format: files run as they are fed, and what is no such file is one line that names it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from export_nets import SHAPE, check_one_line, images, small_network
from tflite_files import write_chain

from edgecompress import export
from edgecompress.core.plugins import discover
from edgecompress.errors import ExportError, MissingPackage
from edgecompress.export import tflite_litert_torch, to_onnx
from edgecompress.export.contract import Format

FORMATS = discover(export, Format)
every_format = pytest.mark.parametrize("format", FORMATS.values(), ids=lambda one: one.name)
CONVERT = {"onnx": to_onnx.convert, "tflite": tflite_litert_torch.convert}
RUNTIMES = {
    "onnx": ("onnxruntime", "onnxruntime"),
    "tflite": ("ai_edge_litert.interpreter", "ai-edge-litert"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """A small network as a file of every format."""
    assert CONVERT.keys() == FORMATS.keys(), "give CONVERT a quick converter to the new format"
    directory, paths = tmp_path_factory.mktemp("files"), {}
    for name, convert in CONVERT.items():
        paths[name] = directory / f"model{FORMATS[name].suffix}"
        convert(small_network(), SHAPE, paths[name])
    return paths


def bad_files(format: Format, files: dict[str, Path], directory: Path) -> list[Path]:
    """Files that are empty, text, zeros, cut off in several places, or of another format."""
    good = files[format.name].read_bytes()
    contents = [b"", b"no model " * 100, bytes(2000), good[:8], good[: len(good) // 2], good[:-1]]
    contents += [path.read_bytes() for name, path in files.items() if name != format.name]
    paths = [directory / f"bad{number}{format.suffix}" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


@every_format
def test_a_batch_is_fed_one_image_at_a_time(format, files):
    batch, file = images(), files[format.name]
    together, apart = format.run(file, batch), torch.cat([format.run(file, one) for one in batch.split(1)])
    assert together.shape == (6, 5) and together.dtype == torch.float32
    torch.testing.assert_close(together, apart, rtol=0, atol=0)


@every_format
def test_the_order_of_images_in_memory_does_not_matter(format, files):
    scattered = images().to(memory_format=torch.channels_last)
    found = format.run(files[format.name], scattered)
    torch.testing.assert_close(found, format.run(files[format.name], images()), rtol=0, atol=0)


@every_format
def test_bad_files_are_one_line_and_leave_nothing_behind(format, files, tmp_path, capfd):
    bad = bad_files(format, files, tmp_path)
    target = tmp_path / "target"
    for path in (*bad, tmp_path / f"none{format.suffix}"):
        for use in (
            lambda path=path: format.run(path, images(1)),
            lambda path=path: format.inspect(path),
            *(lambda path=path, to=to: to(path, target, images(2)) for to in format.recode.values()),
        ):
            with pytest.raises(ExportError) as error:
                use()
            check_one_line(error, path.name)
    assert sorted(tmp_path.iterdir()) == bad
    assert capfd.readouterr() == ("", "")


@every_format
def test_images_of_another_size_are_one_line_with_both_sizes(format, files):
    for shape in ((3, 9, 8), (1, 8, 8)):
        with pytest.raises(ExportError) as error:
            format.run(files[format.name], images(1, shape))
        check_one_line(error, "model", *(str(side) for side in {*shape} ^ {*SHAPE}))
    with pytest.raises(ExportError) as error:
        format.recode["int8"](files[format.name], files[format.name].with_name("x"), images(2, (3, 9, 8)))
    check_one_line(error, "9", "8")


@every_format
def test_no_images_are_one_line(format, files):
    for use in (format.run, lambda file, none: format.recode["int8"](file, file.with_name("x"), none)):
        with pytest.raises(ExportError, match="at least one"):
            use(files[format.name], images(0))


@every_format
def test_without_the_runtime_the_package_is_named(format, files, monkeypatch):
    module, distribution = RUNTIMES[format.name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage) as error:
        format.run(files[format.name], images(1))
    check_one_line(error, f"pip install {distribution}")


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_tflite_files_that_take_whole_numbers_are_fed_and_read_in_their_scale(kind, tmp_path):
    file = write_chain(tmp_path / "chain.tflite", ["RELU"], kind=kind)  # in steps of 0.1
    image = torch.tensor([-0.31, 0.0, 0.2, 0.74]).repeat(8).reshape(1, 2, 4, 4)
    expected = torch.tensor([0.0, 0.0, 0.2, 0.7]).repeat(8).reshape(1, 2, 4, 4).permute(0, 2, 3, 1)
    torch.testing.assert_close(FORMATS["tflite"].run(file, image), expected)


def test_tflite_files_in_the_other_order_are_fed_as_they_like_it(tmp_path):
    file = write_chain(tmp_path / "chain.tflite", ["RELU"], shape=(1, 2, 4, 5))
    image = images(1, (2, 4, 5))
    torch.testing.assert_close(FORMATS["tflite"].run(file, image), image.relu())


def test_what_xnnpack_leaves_aside_is_counted():
    facts = FORMATS["tflite"].inspect(Path(__file__).parent / "files" / "partly.tflite")
    assert facts.outside_delegate == {"CUMSUM": 1} and facts.operators.keys() > {"CUMSUM"}
