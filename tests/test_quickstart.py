"""`quickstart`: one call from a network that comes along to checked files, on a network made small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import edgecompress
from edgecompress.core.results import QuickstartResult
from edgecompress.core.runs import read_run
from edgecompress.core.store import to_json
from edgecompress.core.types import Preprocess
from edgecompress.errors import ConfigError, ExportError
from edgecompress.export.to_onnx import EXPORTER
from edgecompress.nets.entries import Entry
from edgecompress.nets.sources import load_model, zoo_entries
from edgecompress.pipeline.quickstart import PARITY_IMAGES, quickstart

SIDE, CLASSES = 8, 4
IMAGES = 1100  # enough to calibrate, choose and report with


class TinyNet(nn.Module):
    def __init__(self, *, dice: bool = False) -> None:
        super().__init__()
        self.dice = dice
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = x + torch.rand_like(x) if self.dice else x
        x = self.norm(self.conv2(torch.relu(self.conv1(x))))
        return self.head(torch.relu(x).mean((2, 3)))


def entry(name: str, directory: Path, build) -> Entry:
    """A network of the zoo with weights and images of its own."""
    torch.manual_seed(0)
    save_file(build().state_dict(), directory / f"{name}.safetensors")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (IMAGES, SIDE, SIDE), dtype=np.uint8)
    np.savez(directory / "images.npz", x=pixels, y=rng.integers(0, CLASSES, IMAGES))
    return Entry(
        name=name,
        summary="",
        build=lambda classes: build(),
        classes=CLASSES,
        preprocess=Preprocess(size=(SIDE, SIDE), mean=(0.5,), std=(0.25,)),
        is_target=lambda name, module: name == "conv2",
        weights=lambda: directory / f"{name}.safetensors",
        data=str(directory / "images.npz"),
    )


@pytest.fixture(scope="module", autouse=True)
def zoo(tmp_path_factory):
    directory = tmp_path_factory.mktemp("zoo")
    with pytest.MonkeyPatch.context() as patch:
        for name, dice in (("tiny", False), ("dice", True)):
            patch.setitem(zoo_entries(), name, entry(name, directory, lambda dice=dice: TinyNet(dice=dice)))
        yield


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def result(runs_dir) -> QuickstartResult:
    quickstart(model="zoo:tiny", budget="macs=90%", runs_dir=runs_dir, name="mine")
    return quickstart(model="zoo:tiny", budget="macs=60%", runs_dir=runs_dir, name="mine", overwrite=True)


def test_the_run_holds_both_files_and_nothing_unfinished(result, runs_dir):
    run = runs_dir / "mine"
    assert [path.name for path in runs_dir.iterdir()] == ["mine"] and result.compress.run == str(run)
    assert sorted(path.name for path in (run / "exports").iterdir()) == ["dense.onnx", "model.onnx"]
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert result.dense_onnx.file == str(run / "exports" / "dense.onnx")
    assert [export.file for export in result.exports] == [str(run / "exports" / "model.onnx")]


def test_the_files_compute_what_the_networks_compute(result):
    images = torch.randn(5, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    dense, compressed = load_model("zoo:tiny").module, edgecompress.load(result.compress.run)
    with torch.inference_mode():
        before, after = dense(images), compressed(images)
    assert (before - after).abs().max() > 1e-3
    torch.testing.assert_close(EXPORTER.run(Path(result.dense_onnx.file), images), before)
    torch.testing.assert_close(EXPORTER.run(Path(result.exports[0].file), images), after)


def test_the_files_are_compared_on_images_of_the_report(result):
    reported = result.compress.split.report
    assert result.compress.dense.accuracy.images == reported > 0
    assert {parity.images for parity in (result.dense_onnx, *result.exports)} == {
        min(PARITY_IMAGES, reported)
    }


def test_the_budget_and_the_seed_reach_the_run(result):
    assert result.compress.compressed.macs <= 0.6 * result.compress.dense.macs
    run = read_run(Path(result.compress.run))
    assert (run.options["budget"], run.seed) == ("macs=60%", 0)


def test_the_result_survives_json(result):
    assert QuickstartResult.model_validate_json(to_json(result)) == result
    assert result.seconds >= sum(result.compress.seconds.values()) > 0


def test_a_network_without_images_is_told_what_to_use_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError) as error:
        quickstart(model="zoo:resnet20", runs_dir=tmp_path / "runs")
    for part in ("zoo:resnet20", "zoo:tiny", "zoo:fashion_resnet", "compress MODEL --data"):
        assert part in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_files_that_are_not_faithful_are_not_left_behind(tmp_path):
    with pytest.raises(ExportError, match="dense"):
        quickstart(model="zoo:dice", runs_dir=tmp_path, name="run")
    assert edgecompress.load(tmp_path / "run")
    assert not [path for path in tmp_path.rglob("*") if "onnx" in path.name or "exports" in path.name]
