"""Networks that learn in bfloat16: what has few digits, and what has all of them."""

import copy

import pytest
import torch
from small_nets import images, small_net

from edgecompress.errors import ConfigError
from edgecompress.train.contract import Batch, backward_once
from edgecompress.train.mimic import Mix, Place, mimicking
from edgecompress.train.objectives import Teaching, at_precision, from_labels, from_teacher, parse_precision

PLACES = [Place("narrow"), Place("hidden")]


def changed(network):
    other = copy.deepcopy(network).requires_grad_(True)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    return other


def objectives(dense):
    mix = Mix(features=1.0, answers=1.0, labels=0.5)
    return (from_labels(), from_teacher(dense, Teaching(0.5)), mimicking(dense, PLACES, mix))


def gradient(network, objective):
    network.zero_grad()
    loss = backward_once(network, objective, Batch(images(16), torch.arange(16) % 6, 16, 0))
    return loss, torch.cat([one.grad.flatten() for one in network.parameters() if one.grad is not None])


@pytest.mark.parametrize("kind", range(3))
def test_gradients_in_bfloat16_point_where_those_in_float32_do(kind):
    dense = small_net().requires_grad_(False)
    network, objective = changed(dense), objectives(dense)[kind]
    (loss, whole), (short_loss, short) = (
        gradient(network, at_precision(objective, precision)) for precision in ("float32", "bfloat16")
    )
    assert loss.dtype == short_loss.dtype == whole.dtype == short.dtype == torch.float32
    assert float(short_loss) == pytest.approx(float(loss), rel=0.03)
    assert float(torch.cosine_similarity(whole, short, dim=0)) > 0.99
    assert not torch.equal(whole, short)  # it was another precision


def test_networks_compute_in_that_precision_and_answers_are_compared_with_all_digits():
    dense, seen = small_net().requires_grad_(False), []
    network = changed(dense)
    network.narrow.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    for precision in ("float32", "bfloat16"):
        gradient(network, at_precision(from_teacher(dense, Teaching()), precision))
    assert seen == [torch.float32, torch.bfloat16]
    assert all(one.dtype == torch.float32 for one in network.parameters())
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("text", ["", "fp16", "half", "Float32"])
def test_others_are_refused(text):
    with pytest.raises(ConfigError, match="float32 or bfloat16"):
        parse_precision(text)
