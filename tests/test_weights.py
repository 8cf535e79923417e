"""Checkpoints are read without running code, and fit exactly or not at all."""

from __future__ import annotations

import pickle
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from edgecompress.errors import WeightsError
from edgecompress.nets.weights import load_weights_, read_state_dict, strip_prefixes


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 3))


class Wrapping(nn.Module):
    """A network whose only child has the name frameworks use as a prefix."""

    def __init__(self):
        super().__init__()
        self.model = small_net()


def save(state, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(dict(state), path)
    else:
        torch.save(state, path)
    return path


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(found[name], wanted[name])


def message_of(error: pytest.ExceptionInfo[WeightsError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".th", ".bin"])
def test_what_was_saved_is_read_back(tmp_path, suffix):
    state = small_net().state_dict()
    assert_same(read_state_dict(save(state, tmp_path / f"net{suffix}")), state)


@pytest.mark.parametrize(
    "wrapper", ["state_dict", "model", "model_state_dict", "net", "params", "params_ema"]
)
def test_a_trainers_wrapping_is_taken_off(tmp_path, wrapper):
    state = small_net().state_dict()
    path = save({wrapper: OrderedDict(state), "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "net.pth")
    assert_same(read_state_dict(path), state)


def test_wrappings_may_be_nested(tmp_path):
    state = small_net().state_dict()
    path = save({"model": {"state_dict": state, "name": "x"}, "epoch": 3}, tmp_path / "net.pth")
    assert_same(read_state_dict(path), state)


def test_averaged_weights_are_preferred(tmp_path):
    plain, averaged = {"a": torch.zeros(1)}, {"a": torch.ones(1)}
    path = save({"params": plain, "params_ema": averaged}, tmp_path / "net.pth")
    assert_same(read_state_dict(path), averaged)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "model.module."])
def test_a_prefix_all_names_share_is_taken_off(prefix):
    state = small_net().state_dict()
    assert_same(strip_prefixes({prefix + name: tensor for name, tensor in state.items()}), state)


def test_a_prefix_of_only_some_names_stays():
    state = {"model.a": torch.zeros(1), "head.b": torch.zeros(1)}
    assert_same(strip_prefixes(state), state)


@pytest.mark.parametrize("make", [small_net, Wrapping])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_loaded_network_equals_the_saved_one(tmp_path, make, prefix):
    saved, loaded = make(), make()
    state = {prefix + name: tensor for name, tensor in saved.state_dict().items()}
    load_weights_(loaded, save(state, tmp_path / "net.pth"))
    assert_same(loaded.state_dict(), saved.state_dict())


def test_the_inner_network_of_a_wrapped_one_can_be_loaded(tmp_path):
    saved, loaded = Wrapping(), small_net()
    load_weights_(loaded, save(saved.state_dict(), tmp_path / "net.pth"))
    assert_same(loaded.state_dict(), saved.model.state_dict())


def test_half_precision_becomes_the_networks_precision(tmp_path):
    saved, loaded = small_net().half(), small_net()
    load_weights_(loaded, save(saved.state_dict(), tmp_path / "net.safetensors"))
    assert_same(loaded.state_dict(), saved.float().state_dict())


def test_old_checkpoints_without_the_batch_counter_fit(tmp_path):
    saved, loaded = small_net(), small_net()
    state = {name: t for name, t in saved.state_dict().items() if "num_batches" not in name}
    load_weights_(loaded, save(state, tmp_path / "net.pth"))
    assert torch.equal(loaded[0].weight, saved[0].weight)


def test_a_checkpoint_that_does_not_fit_is_named_in_full_and_changes_nothing(tmp_path):
    net = small_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 9)).state_dict()
    state["extra"] = state.pop("0.bias")
    with pytest.raises(WeightsError) as error:
        load_weights_(net, save(state, tmp_path / "net.pth"))
    text = message_of(error)
    assert "1 missing (0.bias)" in text
    assert "1 unexpected (extra)" in text
    assert "2 of another shape (2.weight is (9, 4) in the file and (3, 4) in the model" in text
    assert_same(net.state_dict(), before)


def test_only_the_first_few_of_many_misfits_are_listed(tmp_path):
    state = {f"layer{i}": torch.zeros(1) for i in range(50)}
    with pytest.raises(WeightsError) as error:
        load_weights_(small_net(), save(state, tmp_path / "net.pth"))
    text = message_of(error)
    assert "50 unexpected (layer0, layer1, layer2, ...)" in text
    assert "layer9" not in text


class RunsCode:
    def __init__(self, victim: Path):
        self.victim = victim

    def __reduce__(self):
        return Path.touch, (self.victim,)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    victim, path = tmp_path / "it_ran", tmp_path / "net.pth"
    torch.save({"state_dict": RunsCode(victim)}, path)
    with pytest.raises(WeightsError, match=r"could run code; save model\.state_dict\(\)") as error:
        read_state_dict(path)
    assert str(path) in message_of(error)
    assert not victim.exists()


def test_a_whole_pickled_network_is_refused(tmp_path):
    torch.save(small_net(), tmp_path / "net.pt")
    with pytest.raises(WeightsError, match=r"holds torch\.nn\.modules\.container\.Sequential") as error:
        read_state_dict(tmp_path / "net.pt")
    assert "safetensors" in message_of(error)


def test_a_torchscript_archive_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "net.pt")
    with pytest.raises(WeightsError, match="a TorchScript archive") as error:
        read_state_dict(tmp_path / "net.pt")
    assert "state_dict" in message_of(error)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("keep", [0, 1, 9, 100, -50])
def test_a_cut_off_file_is_refused_in_one_line(tmp_path, suffix, keep):
    path = save(small_net().state_dict(), tmp_path / f"net{suffix}")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(WeightsError, match=r"cut off, damaged or not a|not a whole safetensors") as error:
        read_state_dict(path)
    assert message_of(error).startswith(str(path))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("content", [b"<!DOCTYPE html>", bytes(range(256)) * 4, b"version https://git-lfs"])
def test_a_file_of_another_kind_is_refused_in_one_line(tmp_path, suffix, content):
    path = tmp_path / f"net{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"cut off, damaged or not a|not a whole safetensors") as error:
        read_state_dict(path)
    assert message_of(error).startswith(str(path))


@pytest.mark.parametrize("content", [{"epoch": 3, "optimizer": {"lr": 0.1}}, [torch.zeros(1)], {}, 7])
def test_a_checkpoint_without_weights_is_refused(tmp_path, content):
    with pytest.raises(WeightsError, match="holds no state_dict") as error:
        read_state_dict(save(content, tmp_path / "net.pth"))
    assert "torch.save" in message_of(error)


def test_a_plain_pickle_is_refused(tmp_path):
    (tmp_path / "net.pth").write_bytes(pickle.dumps({"a": Path("x")}))
    with pytest.raises(WeightsError) as error:
        read_state_dict(tmp_path / "net.pth")
    assert "net.pth" in message_of(error)


def test_a_missing_file_and_an_unknown_suffix_say_what_to_do(tmp_path):
    with pytest.raises(WeightsError, match="no such file"):
        read_state_dict(tmp_path / "net.pth")
    (tmp_path / "net.onnx").touch()
    with pytest.raises(WeightsError, match=r"'\.onnx' is not known; known are: \.safetensors, \.pth"):
        read_state_dict(tmp_path / "net.onnx")
