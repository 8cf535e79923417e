"""Which files `bench` measures, and with which each is compared."""

import shutil
import time

import pytest
from bench_files import exported_run, onnx, tflite, write_exports

from edgecompress.core.runs import create_run
from edgecompress.errors import ArtefactError, ConfigError, EdgeCompressError, ExportError
from edgecompress.pipeline.bench_files import find_files

BOTH = (".onnx", ".tflite")
ALL = (
    "compressed.int8.tflite",
    "compressed.onnx",
    "dense.onnx",
    "compressed.tflite",
    "dense.int8.tflite",
    "dense.tflite",
)


def compared(found):
    """Returns each file's name with that of the file it is compared with."""
    return {
        one.path.name: None if one.baseline is None else found.files[one.baseline].path.name
        for one in found.files
    }


def test_files_are_compared_with_the_first(tmp_path):
    paths = [tflite(tmp_path / "b.tflite"), tflite(tmp_path / "a.tflite"), onnx(tmp_path / "c.onnx")]
    found = find_files([str(path) for path in paths], tmp_path, BOTH)
    assert [one.path for one in found.files] == paths
    assert compared(found) == {"b.tflite": None, "a.tflite": "b.tflite", "c.onnx": "b.tflite"}
    assert found.home is None


def test_files_of_a_run_are_compared_with_the_dense_float32_file_of_their_format(tmp_path):
    run = exported_run(tmp_path, ALL)
    assert compared(find_files([str(run)], tmp_path, BOTH)) == {
        "dense.onnx": None,
        "compressed.onnx": "dense.onnx",
        "dense.tflite": None,
        "dense.int8.tflite": "dense.tflite",
        "compressed.tflite": "dense.tflite",
        "compressed.int8.tflite": "dense.tflite",
    }


def test_formats_a_device_does_not_run_are_left_out_of_a_run(tmp_path):
    found = find_files([str(exported_run(tmp_path, ALL))], tmp_path, (".tflite",))
    assert {one.path.suffix for one in found.files} == {".tflite"}


def test_a_run_may_be_given_by_its_name(tmp_path):
    run = exported_run(tmp_path, ["dense.onnx"], name="mine")
    assert find_files(["mine"], tmp_path, BOTH) == find_files([str(run)], tmp_path, BOTH)
    assert find_files(["mine"], tmp_path, BOTH).home == run


def test_nothing_given_means_the_latest_run_that_was_exported(tmp_path):
    exported_run(tmp_path, ["dense.onnx"], name="first")
    time.sleep(0.01)  # runs are told apart by the time they were made
    second = exported_run(tmp_path, ["dense.onnx"], name="second")
    with create_run(tmp_path, command="compress", name="third", options={}, seed=0, inputs={}):
        pass
    assert find_files([], tmp_path, BOTH).home == second


def test_what_export_wrote_outside_of_a_run_can_be_measured(tmp_path):
    exports = write_exports(tmp_path / "out", ["resnet20.onnx", "resnet20.int8.tflite", "resnet20.tflite"])
    found = find_files([str(exports)], tmp_path / "runs", BOTH)
    assert compared(found) == {
        "resnet20.onnx": None,
        "resnet20.tflite": None,
        "resnet20.int8.tflite": "resnet20.tflite",
    }
    assert found.home == exports


def test_a_run_without_exports_says_which_command_makes_them(tmp_path):
    with create_run(tmp_path, command="compress", name="bare", options={}, seed=0, inputs={}) as made:
        pass
    with pytest.raises(ArtefactError, match=f"`edgecompress export {made.path}`"):
        find_files(["bare"], tmp_path, BOTH)
    with pytest.raises(ArtefactError, match="no run has exported files; run `edgecompress export`"):
        find_files([], tmp_path, BOTH)


def test_a_run_without_a_file_for_the_device_says_how_to_get_one(tmp_path):
    run = exported_run(tmp_path, ["dense.onnx", "compressed.onnx"])
    with pytest.raises(ArtefactError, match=r"this device runs \(\.tflite\).* --tflite"):
        find_files([str(run)], tmp_path, (".tflite",))


def test_a_damaged_export_record_is_told(tmp_path):
    run = exported_run(tmp_path, ["dense.onnx"])
    (run / "exports" / "export.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"export\.json: .*cut off"):
        find_files([str(run)], tmp_path, BOTH)


def test_a_file_given_twice_is_named(tmp_path):
    path = tflite(tmp_path / "a.tflite")
    other_way = tmp_path / "folder" / ".." / "a.tflite"
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"a\.tflite: given twice; copy it"):
        find_files([str(path), str(other_way)], tmp_path, BOTH)


def test_runs_and_files_do_not_mix(tmp_path):
    run, path = exported_run(tmp_path / "runs", ["dense.onnx"]), tflite(tmp_path / "a.tflite")
    with pytest.raises(ConfigError, match="give files, or one run"):
        find_files([str(run), str(path)], tmp_path, BOTH)


def test_a_copy_under_another_name_is_another_file(tmp_path):
    path = tflite(tmp_path / "a.tflite")
    copy = shutil.copy(path, tmp_path / "b.tflite")
    assert len(find_files([str(path), str(copy)], tmp_path, BOTH).files) == 2


@pytest.mark.parametrize(
    ("name", "content", "kind", "said"),
    [
        ("gone.tflite", None, ExportError, "there is no such file or run"),
        ("weights.pth", b"weights", ExportError, "neither .onnx nor .tflite"),
        ("photo.tflite", b"\x89PNG\r\n\x1a\n" * 9, ExportError, "is not a TFLite file"),
        ("empty.tflite", b"", ExportError, "is not a TFLite file"),
        ("net.onnx", b"any", ExportError, "this device runs .tflite files"),
        ("folder", "directory", ArtefactError, "neither a run nor a directory of exports"),
    ],
)
def test_what_cannot_be_measured_on_a_phone_is_refused_before_it_is_reached(
    tmp_path, name, content, kind, said
):
    path = tmp_path / name
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(EdgeCompressError) as caught:
        find_files([str(path)], tmp_path, (".tflite",))
    assert isinstance(caught.value, kind)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
