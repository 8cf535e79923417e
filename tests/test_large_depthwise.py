"""Depthwise convolutions of many taps are split into smaller ones and compute the same."""

import pytest
import torch
from torch import nn

from edgecompress.devices.litert_graph import count_operators, operators_outside_delegate
from edgecompress.export import tflite_litert_torch
from edgecompress.export.tflite_format import run
from edgecompress.nets.large_depthwise import MOST_TAPS, split_large_depthwise_


def convolutions(network):
    return [module for module in network.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize(
    ("kernel", "padding"), [(7, 3), (9, 4), (11, 5), ((7, 5), (3, 2)), ((6, 5), (1, 0)), ((7, 7), (2, 0))]
)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_the_parts_compute_what_the_convolution_computes(kernel, padding, stride, bias):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(6, 6, kernel, stride, padding, groups=6, bias=bias)).double().eval()
    x = torch.randn(2, 6, 19, 16, dtype=torch.float64)
    expected = network(x)
    assert split_large_depthwise_(network) == 1
    torch.testing.assert_close(network.double()(x), expected, rtol=1e-6, atol=1e-6)
    parts = convolutions(network)
    assert len(parts) > 1
    assert all(part.kernel_size[0] * part.kernel_size[1] <= MOST_TAPS for part in parts)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(6, 6, 5, padding=2, groups=6),
        nn.Conv2d(6, 6, 7, padding=3, groups=3),
        nn.Conv2d(6, 6, 7, padding=3),
        nn.Conv2d(6, 12, 7, padding=3, groups=6),
        nn.Conv2d(6, 6, 7, padding=1, groups=6),
        nn.Conv2d(6, 6, 7, padding="same", groups=6),
        nn.Conv2d(6, 6, 7, padding=3, groups=6, padding_mode="reflect"),
        nn.Conv2d(6, 6, 7, padding=6, dilation=2, groups=6),
    ],
    ids=str,
)
def test_others_stay(conv):
    network = nn.Sequential(conv)
    assert split_large_depthwise_(network) == 0
    assert network[0] is conv


def test_files_have_the_parts_and_one_operator_each(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    file = tmp_path / "model.tflite"
    tflite_litert_torch.convert(network, (3, 12, 12), file)
    found = count_operators(file)
    assert (found["DEPTHWISE_CONV_2D"], found["ADD"]) == (3, 2)
    assert set(found) <= {"DEPTHWISE_CONV_2D", "ADD", "CONV_2D", "MEAN", "PAD"}
    assert operators_outside_delegate(file) == {}
    image = torch.randn(1, 3, 12, 12)
    torch.testing.assert_close(run(file, image), network(image).detach(), rtol=1e-4, atol=1e-5)
