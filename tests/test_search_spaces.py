"""`edgecompress search --space`: channels and dimensions go for good, alone or beside low-rank blocks."""

from pathlib import Path

import pytest
import torch
from cli_calls import check_one_line_error, run
from made_tables import SIZE, SOURCE, write_home

import edgecompress
from edgecompress.core.search_results import SearchResult
from edgecompress.nets.modules import find_layers
from edgecompress.nets.profile import profile, total_macs

COMMON = ("-m", SOURCE, "--input-size", "10x10", "--data", "images.npz", "--latency-table", "t.json")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_home(folder)
    return folder


@pytest.fixture(autouse=True)
def folder(home, tmp_path, monkeypatch):
    for file in home.iterdir():
        if file.suffix in (".npz", ".json"):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "small.py").symlink_to(home / "small.py")
    monkeypatch.chdir(tmp_path)


def call(*args, code=0):
    result = run("search", *COMMON, *args, "--json")
    assert result.exit_code == code, result.stderr
    return SearchResult.model_validate_json(result.stdout)


@pytest.mark.parametrize("space", ["widths", "joint"])
def test_a_network_gets_as_small_as_asked_and_loads_again(space):
    result = call("--space", space, "--budget", "macs=60%", "--name", "a")
    assert result.compressed.macs <= 0.6 * result.dense.macs
    assert result.cost == pytest.approx(result.compressed.macs)
    network = edgecompress.load("runs/a")
    assert total_macs(profile(network, (3, *SIZE))) == result.compressed.macs
    assert sum(p.numel() for p in network.parameters()) == result.compressed.params
    narrower = {one.name: one.ranks for one in result.layers if one.family == "narrower"}
    assert {one.group for one in result.plan.narrowings} <= set(narrower)
    layers, _ = find_layers(network, narrower, (3, *SIZE))
    assert {one.name: (one.op.inputs, one.op.outputs) for one in layers} == narrower
    touched = {one.layers[0] for one in result.plan.choices}
    assert not touched & set(narrower) and (space == "joint" or not touched)


def test_joint_predicts_no_more_harm_than_either_alone():
    def harm(space):
        result = call("--space", space, "--budget", "macs=60%", "--no-refit", "--batch-norm", "keep")
        point = min(result.front, key=lambda one: abs(one.cost - 0.6 * result.dense_cost))
        return point.predicted_loss

    assert harm("joint") <= 1.05 * harm("widths")


def test_the_result_is_the_same_again():
    options = ("--space", "joint", "--budget", "macs=60%")
    first, second = call(*options, "--name", "a"), call(*options, "--name", "b")
    assert first.plan == second.plan
    files = [Path("runs") / name / "weights.safetensors" for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_it_keeps_answers_better_than_chance():
    result = call("--space", "widths", "--budget", "macs=75%", "--name", "a")
    assert result.compressed.accuracy.top1 > 50 > 100 / 4
    with torch.no_grad():
        assert edgecompress.load("runs/a")(torch.zeros(2, 3, *SIZE)).shape == (2, 4)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--space", "nonsense"), ("'nonsense'", "lowrank, widths, dims, joint")),
        (("--space", "dims", "--budget", "macs=60%"), ("nothing to take away", "'dims'", "--space")),
        (("--space", "widths", "--max-drop", "1"), ("--max-drop", "lowrank")),
        (("--space", "widths", "--budget", "macs=1%"), ("cannot be met", "nearest")),
        (("--space", "widths", "--budget", "macs=100%"), ("already",)),
        (("--space", "widths", "--target-speedup", "1.2"), ("latency table", "latency build")),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(args, expected):
    check_one_line_error(run("search", *COMMON, *args), *expected)
    assert not list(Path().glob("runs/*"))
