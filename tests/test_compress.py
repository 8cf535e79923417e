"""`compress` from a user's own file to a run on disk, and every way it can be refused."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_calls import run as cli
from small_nets import INPUT_SHAPE, small_net

from edgecompress.core.progress import NO_PROGRESS
from edgecompress.core.results import CompressResult
from edgecompress.core.runs import latest_run, read_run
from edgecompress.core.store import read_record, sha256_of
from edgecompress.data.sources import open_source
from edgecompress.data.splits import make_splits
from edgecompress.errors import (
    ArtefactError,
    BudgetError,
    ConfigError,
    DataError,
    EdgeCompressError,
    ModelError,
)
from edgecompress.nets.artefact import load, read_plan
from edgecompress.nets.profile import profile, total_macs, total_params
from edgecompress.pipeline.compress import RESULT_FILE, compress
from edgecompress.pipeline.evaluate import accuracy
from edgecompress.pipeline.inspect import inspect

TESTS = Path(__file__).parent
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TURN_OFF = {"factors": "plain", "refit": False, "local_search": False, "batch_norm": "keep"}
QUICK = {"local_search": False}
VARIANTS = """

def broken():
    net = small_net()
    net.wide.weight.data[0, 0, 0, 0] = float("nan")
    return net


class Frozen(SmallNet):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Reading(SmallNet):
    def forward(self, x):
        x = self.norm1(self.narrow(self.stem(x))).relu()
        x = self.biased(self.depthwise(self.norm2(self.wide(x)).relu())).relu().mean((2, 3))
        return self.head(self.hidden(x.view(-1, self.hidden.in_features)).relu())


class Caching(SmallNet):
    def forward(self, x):
        self.masks = self.__dict__.get("masks", {})
        mask = self.masks.setdefault(len(x), torch.full((len(x), 1, 1, 1), 0.5))
        return super().forward(x * mask)


def single():
    return small_net(classes=1)
"""


def pixels(count, seed=0):
    """Returns smooth images as bytes, so that a network built on them has something to tell apart."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.normal(128, 60, (count, 3, 4, 4)))
    smooth = torch.nn.functional.interpolate(coarse, size=INPUT_SHAPE[1:], mode="bilinear")
    return smooth.clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def opinions(x):
    """Returns the classes the dense network sees."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    with torch.no_grad():
        return small_net()((torch.from_numpy(x).permute(0, 3, 1, 2) / 255 - mean) / std).argmax(1).numpy()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a user's model and data sets."""
    place = tmp_path_factory.mktemp("user")
    (place / "my_net.py").write_text((TESTS / "small_nets.py").read_text() + VARIANTS)
    x = pixels(160)
    np.savez(place / "images.npz", x=x, y=opinions(x))
    np.savez(place / "unlabelled.npz", x=x)
    np.savez(place / "zeros.npz", x=x, y=np.zeros(len(x), dtype=np.int64))
    return place


def run(place, runs_dir, factory="small_net", **options):
    defaults = {
        "data": str(place / "images.npz"),
        "input_size": INPUT_SHAPE[1:],
        "calibration_images": 32,
        "selection_images": 16,
        "runs_dir": runs_dir,
    }
    return compress(f"{place / 'my_net.py'}:{factory}", **(defaults | options))


def refused(kind, place, tmp_path, **options):
    """Returns the one line `compress` ends with, after making sure that no run is left."""
    with pytest.raises(EdgeCompressError) as error:
        run(place, tmp_path / "runs", **options)
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []
    return str(error.value)


@pytest.fixture(scope="module")
def result(place):
    return run(place, place / "runs")


def test_the_loaded_network_costs_what_was_reported_and_at_most_half(result):
    network = load(result.run)
    macs = total_macs(profile(network, INPUT_SHAPE))
    assert macs == result.compressed.macs <= 0.5 * result.dense.macs
    assert total_params(network) == result.compressed.params < result.dense.params
    assert result.compressed.weight_bytes == 4 * result.compressed.params
    assert result.dense.macs == total_macs(profile(small_net(), INPUT_SHAPE))
    saved = sum(layer.macs_before - layer.macs_after for layer in result.layers)
    assert result.dense.macs - result.compressed.macs == saved


def test_the_loaded_network_is_as_good_as_was_reported(result, place):
    assert result.dense.accuracy.top1 == 100  # the labels are its own opinions
    assert result.compressed.accuracy.images == result.split.report == 160 - 32 - 16
    assert result.compressed.accuracy.top1 > 60
    source = open_source(str(place / "images.npz"), result.plan.model.preprocess)
    report = make_splits(source, calibration=32, selection=16, seed=0).report
    again = accuracy(load(result.run), report, size=50, progress=NO_PROGRESS, what="loaded")
    assert again == result.compressed.accuracy


def test_the_run_holds_what_was_returned(result, place):
    path = Path(result.run)
    assert sorted(file.name for file in path.iterdir()) == [
        "plan.json",
        "result.json",
        "run.json",
        "weights.safetensors",
    ]
    assert read_record(path / RESULT_FILE, CompressResult) == result
    assert read_plan(path) == result.plan
    recorded = read_run(path)
    assert recorded.options["budget"] == "macs=50%"
    assert recorded.inputs == {str(place / "images.npz"): result.split.sha256}
    assert [step for step, _ in result.steps] == ["local search", "refit", "batch norm"]
    assert [layer.name for layer in result.layers] == ["narrow", "wide", "depthwise", "biased", "hidden"]


def test_a_grouped_convolution_is_listed_as_skipped(result, place):
    ((name, reason),) = result.plan.skipped
    assert name == "depthwise"
    assert "groups=16" in reason
    (row,) = (layer for layer in result.layers if layer.name == "depthwise")
    assert (row.family, row.macs_after) == ("dense", row.macs_before)
    seen = inspect(f"{place / 'my_net.py'}:small_net", input_size=INPUT_SHAPE[1:])
    assert seen.skipped == result.plan.skipped
    assert seen.macs == result.dense.macs


def test_a_run_can_be_inspected(result):
    seen = inspect(result.run)
    assert (seen.macs, seen.params) == (result.compressed.macs, result.compressed.params)
    assert seen.model == result.plan.model


def test_the_same_seed_gives_the_same_plan_and_weights_whatever_came_before(result, place, tmp_path):
    torch.manual_seed(12345)
    again = run(place, tmp_path)
    assert again.plan == result.plan
    assert again.steps == result.steps
    weights = [sha256_of(Path(r.run) / "weights.safetensors") for r in (result, again)]
    assert weights[0] == weights[1]
    other = run(place, tmp_path, seed=1)
    assert sha256_of(Path(other.run) / "weights.safetensors") != weights[0]
    assert other.split.sha256 != result.split.sha256


@pytest.mark.parametrize(
    ("budget", "metric", "limit"),
    [("params=60%", "params", None), ("params=5k", "params", 5000), ("macs=0.15M", "macs", 150_000)],
)
def test_budgets_may_be_in_another_metric_and_absolute(place, tmp_path, budget, metric, limit):
    found = run(place, tmp_path, budget=budget, **QUICK)
    limit = limit or 0.6 * found.dense.params
    assert 0.8 * limit < getattr(found.compressed, metric) <= limit


@pytest.mark.parametrize("budget", ["macs=100%", "macs=150%", "params=1G"])
def test_a_budget_the_dense_model_meets_is_refused(place, tmp_path, budget):
    told = refused(BudgetError, place, tmp_path, budget=budget)
    assert told.startswith(f"budget '{budget}': the dense model takes") and "ask for less" in told


def test_milliseconds_are_not_offered_where_they_are_refused(place, tmp_path):
    assert " ms=" not in refused(ConfigError, place, tmp_path, budget="half")
    assert " ms=" not in cli("compress", "--help").stdout


@pytest.mark.parametrize(("factory", "is_random"), [("SmallNet", True), ("small_net", False)])
def test_random_weights_of_own_code_are_said(place, tmp_path, factory, is_random):
    steps = dict(run(place, tmp_path, factory=factory, **QUICK).steps)
    assert ("pass --weights" in steps.get("weights", "")) is is_random


def test_given_weights_are_not_called_random(place, tmp_path):
    torch.save(small_net().state_dict(), tmp_path / "net.pth")
    steps = dict(run(place, tmp_path, "SmallNet", weights=str(tmp_path / "net.pth"), **QUICK).steps)
    assert "weights" not in steps


def test_an_impossible_budget_leaves_no_run_and_the_one_it_names_works(place, tmp_path):
    message = refused(BudgetError, place, tmp_path, budget="macs=1%", **QUICK)
    nearest = message.rpartition("nearest reachable is ")[2]
    found = run(place, tmp_path / "runs", budget=nearest, **QUICK)
    assert f"macs={found.compressed.macs}" == nearest


@pytest.mark.parametrize(
    "options",
    [{}, {"report_images": 0}, {"factors": "plain", "report_images": 0}, {"data": None} | TURN_OFF],
    ids=["reported", "aware", "plain", "without images"],
)
def test_weights_that_are_not_numbers_are_refused(place, tmp_path, options):
    assert "not finite" in refused(ModelError, place, tmp_path, factory="broken", **options)


def test_without_images_only_what_needs_none_is_possible(place, tmp_path):
    assert "pass --data, or --factors plain" in refused(ConfigError, place, tmp_path, data=None)
    for still_on in TURN_OFF:
        rest = {key: value for key, value in TURN_OFF.items() if key != still_on}
        refused(ConfigError, place, tmp_path, data=None, **rest)
    found = run(place, tmp_path / "runs", data=None, **TURN_OFF)
    assert (found.split, found.dense.accuracy, found.compressed.accuracy) == (None, None, None)
    assert found.compressed.macs <= 0.5 * found.dense.macs


def test_a_report_on_calibration_images_is_refused(place, tmp_path):
    same = str(place / "images.npz")
    assert "also calibration or selection" in refused(DataError, place, tmp_path, report_data=same)


@pytest.mark.parametrize("asked", [{}, {"report_images": 0}])
def test_images_without_labels_calibrate_and_are_not_reported_on(place, tmp_path, asked):
    found = run(place, tmp_path / "runs", data=str(place / "unlabelled.npz"), **asked, **QUICK)
    assert found.compressed.accuracy is None
    assert found.split.report == 0
    said = [text for step, text in found.steps if step == "report"]
    assert [text.endswith("unlabelled.npz have no labels") for text in said] == ([] if asked else [True])


@pytest.mark.parametrize("asked", [{"report_images": 8}, {"report_data": "unlabelled.npz"}])
def test_a_report_on_images_without_labels_is_refused_where_it_is_asked_for(
    place, tmp_path, asked, monkeypatch
):
    monkeypatch.chdir(place)
    told = refused(DataError, place, tmp_path, data="unlabelled.npz", **asked)
    assert "without labels" in told and "--report-images 0" in told


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"budget": "half"}, ConfigError, "macs=50%"),
        ({"budget": "ms=5"}, ConfigError, "latency table"),
        ({"methods": ("magic",)}, ConfigError, "lowrank"),
        ({"rank_selection": "luck"}, ConfigError, "exact"),
        ({"factors": "guess"}, ConfigError, "aware, plain"),
        ({"families": ("S9",)}, ConfigError, "S2, S2T"),
        ({"batch_norm": "maybe"}, ConfigError, "auto, keep, correct"),
        ({"layers": "nowhere.*"}, ConfigError, "fits no convolution or linear layer; there are: stem.0"),
        ({"layers": ""}, ConfigError, "fits no convolution or linear layer"),
        ({"calibration_images": 0}, ConfigError, "at least 1"),
        ({"calibration_images": 1000}, DataError, "160 images"),
        ({"selection_images": -1}, ConfigError, "negative"),
        ({"data": "nowhere.npz"}, DataError, "nowhere.npz"),
        ({"factory": "no_such"}, ModelError, "small_net"),
        ({"factory": "Frozen"}, ModelError, "no gradient reaches it"),
        ({"factory": "single", "data": "zeros.npz"}, ModelError, "--factors plain"),
        ({"classes": 7}, ModelError, "--classes"),
        ({"name": "a/b"}, ConfigError, "run name"),
        ({"input_size": (0, 12)}, ConfigError, "at least 1"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_what_is_wrong_is_one_line_and_leaves_no_run(place, tmp_path, options, kind, says, monkeypatch):
    monkeypatch.chdir(place)
    assert says in refused(kind, place, tmp_path, **options)


def test_layers_can_be_chosen_by_pattern(place, tmp_path):
    found = run(place, tmp_path, layers="n*,wide", budget="macs=80%", **QUICK)
    assert [layer.name for layer in found.layers] == ["narrow", "wide"]
    everything = run(place, tmp_path, layers="all", budget="macs=80%", **QUICK)
    assert [layer.name for layer in everything.layers][0::6] == ["stem.0", "head"]


@pytest.mark.parametrize(
    "off", [{"refit": False}, {"batch_norm": "keep"}, {"factors": "plain"}, QUICK], ids=str
)
def test_steps_can_be_left_out(place, tmp_path, off):
    found = run(place, tmp_path, **off)
    expected = ["local search", "refit", "batch norm"]
    left_out = {"refit": "refit", "batch_norm": "batch norm", "local_search": "local search"}.get(*off)
    assert [step for step, _ in found.steps] == [step for step in expected if step != left_out]
    assert found.compressed.macs <= 0.5 * found.dense.macs
    assert load(found.run) is not None


def test_a_layer_whose_attributes_the_model_reads_stays(place, tmp_path):
    found = run(place, tmp_path, factory="Reading", budget="macs=40%", **QUICK)
    assert dict(found.plan.skipped)["hidden"].endswith("no attribute 'in_features'")
    assert load(found.run).hidden.in_features == 20


def test_what_a_model_caches_while_reporting_does_not_hinder_gradients(place, tmp_path):
    found = run(place, tmp_path, factory="Caching", report_images=32, **QUICK)
    assert found.compressed.macs <= 0.5 * found.dense.macs


def test_a_model_with_one_output_can_be_compressed_without_gradients(place, tmp_path):
    zeros = str(place / "zeros.npz")
    found = run(place, tmp_path, factory="single", data=zeros, factors="plain", **QUICK)
    assert found.compressed.macs <= 0.5 * found.dense.macs


def test_a_taken_name_is_refused_before_any_work_and_can_be_overwritten(place, tmp_path):
    first = run(place, tmp_path, name="mine", data=None, **TURN_OFF)
    with pytest.raises(ArtefactError, match="--overwrite"):
        run(place, tmp_path, name="mine", budget="macs=1%")
    assert read_plan(tmp_path / "mine") == first.plan
    second = run(place, tmp_path, name="mine", budget="macs=70%", data=None, overwrite=True, **TURN_OFF)
    assert read_plan(tmp_path / "mine") == second.plan != first.plan
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_run_moves_with_its_directory(result, tmp_path):
    shutil.copytree(result.run, tmp_path / "moved")
    assert read_plan(tmp_path / "moved") == result.plan
    original, moved = load(result.run), load(tmp_path / "moved")
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), moved.parameters(), strict=True))


KILLED = """
import sys
from pathlib import Path
from edgecompress.pipeline.compress import compress
place, runs = Path(sys.argv[1]), Path(sys.argv[2])
while True:
    compress(f"{place / 'my_net.py'}:small_net", data=str(place / "images.npz"), input_size=(12, 12),
             calibration_images=64, selection_images=16, runs_dir=runs, name="mine", overwrite=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_a_killed_compression_leaves_no_run_and_does_not_hinder_the_next(place, tmp_path):
    command = [sys.executable, "-c", KILLED, str(place), str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while process.poll() is None and not any(tmp_path.glob(".mine.*")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (-signal.SIGKILL, b"")
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    with pytest.raises(ArtefactError):
        latest_run(tmp_path)
    found = run(place, tmp_path, name="mine", data=None, **TURN_OFF)
    assert latest_run(tmp_path) == Path(found.run)
