"""`quickstart`: one call from a network that comes along to checked files, on a network made small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_zoo import SHAPE, entry, in_zoo

import edgecompress
from edgecompress.core.loop_results import QuickstartResult
from edgecompress.core.runs import read_run
from edgecompress.core.store import to_json
from edgecompress.errors import ConfigError, ExportError
from edgecompress.export.tflite_format import run as run_tflite
from edgecompress.nets.sources import load_model
from edgecompress.pipeline.quickstart import quickstart
from edgecompress.pipeline.subject import PARITY_IMAGES


@pytest.fixture(scope="module", autouse=True)
def zoo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("zoo")
    with in_zoo(entry("tiny", directory), entry("dice", directory, dice=True)):
        yield


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def result(runs_dir) -> QuickstartResult:
    return quickstart(model="zoo:tiny", budget="macs=60%", runs_dir=runs_dir, name="mine", overwrite=True)


def test_the_run_holds_both_files_and_nothing_unfinished(result, runs_dir):
    run = runs_dir / "mine"
    assert [path.name for path in runs_dir.iterdir()] == ["mine"] and result.search.run == str(run)
    names = ["compressed.tflite", "dense.tflite", "export.json"]
    assert (run / "bench-local.json").is_file()
    assert sorted(path.name for path in (run / "exports").iterdir()) == names
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert result.export.directory == str(run / "exports")
    assert {one.file for one in result.export.files} == {"dense.tflite", "compressed.tflite"}


def test_the_files_compute_what_the_networks_compute(result):
    images = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    dense, compressed = load_model("zoo:tiny").module, edgecompress.load(result.search.run)
    with torch.inference_mode():
        before, after = dense(images), compressed(images)
    assert (before - after).abs().max() > 1e-3
    exports = Path(result.export.directory)
    torch.testing.assert_close(run_tflite(exports / "dense.tflite", images), before)
    torch.testing.assert_close(run_tflite(exports / "compressed.tflite", images), after)


def test_the_files_are_compared_on_images_of_the_report(result):
    reported = result.search.split.report
    assert result.search.dense.accuracy.images == reported > 0
    assert {one.parity.images for one in result.export.files} == {min(PARITY_IMAGES, reported)}


def test_the_budget_and_the_seed_reach_the_run(result):
    assert result.search.compressed.macs <= 0.6 * result.search.dense.macs
    run = read_run(Path(result.search.run))
    assert (run.options["budget"], run.seed) == ("macs=60%", 0)


def test_the_result_survives_json(result):
    assert QuickstartResult.model_validate_json(to_json(result)) == result
    assert result.seconds >= result.search.seconds["all"] > 0


def test_both_files_are_measured_in_turns(result):
    (bench,) = result.bench.benches
    (comparison,) = bench.comparisons
    assert (comparison.baseline, comparison.other) == ("dense.tflite", "compressed.tflite")
    assert comparison.paired and comparison.speedup > 0


def test_a_network_without_images_is_told_what_to_use_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError) as error:
        quickstart(model="zoo:resnet20", runs_dir=tmp_path / "runs")
    for part in ("zoo:resnet20", "zoo:tiny", "zoo:fashion_resnet", "search --model MODEL --data"):
        assert part in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_files_that_are_not_faithful_are_not_left_behind(tmp_path):
    with pytest.raises(ExportError, match="dense"):
        quickstart(model="zoo:dice", budget="macs=60%", runs_dir=tmp_path, name="run")
    assert edgecompress.load(tmp_path / "run")
    assert not [path for path in tmp_path.rglob("*") if "tflite" in path.name or "exports" in path.name]
