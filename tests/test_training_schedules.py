"""Schedules of the learning rate, objectives, and checkpoints without pickle."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from edgecompress.errors import ArtefactError, ConfigError, DataError
from edgecompress.train.checkpoint import load_state, save_state
from edgecompress.train.contract import Batch
from edgecompress.train.objectives import Teaching, from_labels, from_teacher
from edgecompress.train.schedules import parse_schedule


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("cosine", [1.0, 0.5, 0.0]),
        ("linear", [1.0, 0.5, 0.0]),
        ("constant", [1.0, 1.0, 1.0]),
        ("steps:0.4,0.8:0.1", [1.0, 0.1, 0.01]),
        ("plateau:3:0.5:0.1", [1.0, 1.0, 1.0]),
    ],
)
def test_schedules_go_as_they_say(text, shares):
    schedule = parse_schedule(text)
    assert [schedule.share(at) for at in (0.0, 0.5, 1.0)] == pytest.approx(shares, abs=1e-12)
    assert (schedule.plateau is not None) == text.startswith("plateau")


def test_the_rate_rises_before_anything_else():
    schedule = parse_schedule("cosine", warmup=0.2)
    assert [schedule.share(at) for at in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize(
    "text", ["cos", "steps:2:0.1", "steps:0.5", "plateau:0:0.1:0.1", "linear:3", "steps:a:b"]
)
def test_schedules_that_are_not_understood_are_named(text):
    with pytest.raises(ConfigError, match=f"schedule {text!r}: not understood"):
        parse_schedule(text)
    with pytest.raises(ConfigError, match="warm-up"):
        parse_schedule("cosine", warmup=1.0)


def batch(labels=None):
    images = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    return Batch(images, labels, 5, 0)


def network(seed):
    torch.manual_seed(seed)
    return nn.Linear(3, 4)


def test_losses_are_sums_over_images():
    labels = torch.tensor([0, 1, 2, 3, 0])
    loss = from_labels(smoothing=0.1)(network(0), batch(labels))
    expected = 5 * F.cross_entropy(network(0)(batch().images), labels, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def test_a_teacher_says_what_its_softened_answers_say():
    labels, temperature = torch.tensor([0, 1, 2, 3, 0]), 4.0
    teaching = Teaching(weight=0.7, temperature=temperature)
    loss = from_teacher(network(1), teaching)(network(0), batch(labels))
    p = (network(1)(batch().images) / temperature).softmax(1)
    q = (network(0)(batch().images) / temperature).softmax(1)
    taught = temperature**2 * (p * (p.log() - q.log())).sum()
    told = F.cross_entropy(network(0)(batch().images), labels, reduction="sum")
    torch.testing.assert_close(loss, 0.7 * taught + 0.3 * told)


def test_a_teacher_alone_needs_no_labels_and_teaching_itself_costs_nothing():
    loss = from_teacher(network(0), Teaching())(network(0), batch())
    assert loss.item() == pytest.approx(0, abs=1e-6)
    with pytest.raises(DataError, match="the images have none"):
        from_labels()(network(0), batch())


@pytest.mark.parametrize("options", [{"weight": 1.5}, {"weight": -0.1}, {"temperature": 0.0}])
def test_teaching_out_of_range_is_refused(options):
    with pytest.raises(ConfigError):
        Teaching(**options)


def test_a_state_comes_back_as_it_was(tmp_path):
    state = {
        "network": {"weight": torch.randn(2, 3), "count": torch.tensor(3)},
        "optimiser": {"state": {0: {"momentum": torch.ones(2)}}, "groups": [{"lr": 0.1, "params": [0]}]},
        "none": None,
        "text": "a",
        "infinite": float("inf"),
    }
    save_state(tmp_path / "one.safetensors", state, "me")
    found = load_state(tmp_path / "one.safetensors", "me")
    assert torch.equal(found["network"]["weight"], state["network"]["weight"])
    assert (
        found["network"]["count"].shape == () and found["optimiser"]["groups"] == state["optimiser"]["groups"]
    )
    assert list(found["optimiser"]["state"]) == [0]
    assert (found["none"], found["text"], found["infinite"]) == (None, "a", float("inf"))


def test_damaged_checkpoints_are_named(tmp_path):
    path = tmp_path / "one.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ArtefactError, match="not a checkpoint of a training"):
        load_state(path, "me")
    told = {"identity": "me", "state": json.dumps({"__tensor__": "7"}), "sha256": "0"}
    save_file({}, path, {"edgecompress": json.dumps(told)})
    with pytest.raises(ArtefactError, match="not a checkpoint of a training"):
        load_state(path, "me")


@pytest.mark.parametrize("place", [-1, -40, 200])
def test_a_changed_byte_of_a_checkpoint_is_found(tmp_path, place):
    """Of a number or of the text: what a failing disk does is not trained on with."""
    path = tmp_path / "one.safetensors"
    save_state(path, {"weight": torch.ones(20), "step": 7}, "me")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="not a checkpoint of a training"):
        load_state(path, "me")
